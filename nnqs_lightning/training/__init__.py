"""Lightning wiring: module, data, callbacks, checkpoints, strategies."""
