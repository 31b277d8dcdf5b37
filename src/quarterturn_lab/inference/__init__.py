"""Using trained networks: predictions for image files, Kaggle submissions, ONNX export."""
