"""How a run is spread over processes: DeepSpeed at every ZeRO stage, beside Lightning's own DDP and single device."""

from nnqs_lightning.training.strategies.deepspeed import DeepSpeed
from nnqs_lightning.training.strategies.settings import refuse_misfits
from nnqs_lightning.training.strategies.whole import full_gradients, gather_parameters

__all__ = ["DeepSpeed", "full_gradients", "gather_parameters", "refuse_misfits"]
