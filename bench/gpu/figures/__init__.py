"""One module per group of figures of the issue's table; each function takes a Context and gives a Figure."""
