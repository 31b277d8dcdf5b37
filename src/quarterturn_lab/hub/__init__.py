"""Trained networks as folders in the form of the Hugging Face hub: config.json, model.safetensors, README.md.

`from_pretrained(DIR)` loads one, and `timm.create_model("local-dir:DIR", pretrained=True)` too, after
`import quarterturn_lab.hub.timm_models`.
"""

from quarterturn_lab.hub.folder import from_pretrained as from_pretrained
