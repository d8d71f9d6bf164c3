"""Model families: a spec read from the config, and the forward as plain PyTorch over `tandem.kernels` operators."""
