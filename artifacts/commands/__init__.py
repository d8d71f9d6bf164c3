"""The commands of `tandem-bundle`, one module each: its `command`, loaded when it is asked for."""
