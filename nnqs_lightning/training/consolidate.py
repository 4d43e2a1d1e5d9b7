"""One file from a checkpoint that DeepSpeed has sharded: fp32 weights, the optimiser's state and Lightning's own.

The file is laid out as an ordinary Lightning checkpoint, so every strategy reads it, also without DeepSpeed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint_store import STATE
from nnqs_lightning.training.strategies.shards import is_sharded, read_whole


def consolidate(checkpoint: str | Path, output: str | Path | None = None) -> Path:
    """Write ``checkpoint``, a folder that DeepSpeed has written, as one file.

    Args:
        checkpoint: the folder, or the numbered folder of the run that holds it.
        output: the file; by default beside the folder, with the ending ``.whole.ckpt``.

    Raises:
        UserError: if ``checkpoint`` is not sharded.
    """
    given = Path(checkpoint)
    folder = given / STATE if (given / STATE).is_dir() else given
    if not is_sharded(folder):
        found = "a single file already" if folder.is_file() or (given / STATE).is_file() else "not a checkpoint"
        raise UserError(f"{checkpoint} is {found}: consolidate expects a folder of shards that DeepSpeed has written")
    named = folder.parent if folder.name == STATE else folder
    target = Path(output) if output else named.with_name(f"{named.name.removesuffix('.ckpt')}.whole.ckpt")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    torch.save(read_whole(folder), temporary)
    temporary.replace(target)
    return target


def main(args: Sequence[str]) -> None:
    """``python -m nnqs_lightning consolidate CKPT [--output FILE]``."""
    parser = argparse.ArgumentParser("nnqs_lightning consolidate", description=__doc__.splitlines()[0])
    parser.add_argument("ckpt", help="a checkpoint of a DeepSpeed run: its folder, such as checkpoints/step-00000500")
    parser.add_argument("--output", help="the file to write; by default beside the folder, ending in .whole.ckpt")
    options = parser.parse_args(args)
    target = consolidate(options.ckpt, options.output)
    print(f"written to {target}: pass it to --ckpt_path or --model.init_from")
