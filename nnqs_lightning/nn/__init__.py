"""Networks: tensors only, no chemistry."""

from nnqs_lightning.nn.decoder import N_TOKENS, Activation, Decoder

__all__ = ["N_TOKENS", "Activation", "Decoder"]
