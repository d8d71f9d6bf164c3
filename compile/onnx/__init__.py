"""The portable way out: a bundle's plain step as an ONNX model, from the definitions of the operators."""
