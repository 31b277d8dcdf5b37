"""Trained networks in use: predictions for files, Kaggle's files, ONNX."""
