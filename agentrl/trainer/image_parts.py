"""Whether a run can show its model images, and if not, why: training, SGLang and models without a processor cannot."""

from __future__ import annotations

from agentrl.config import RunConfig
from agentrl.models.images import ImageInputs, find_image_inputs

_ROLLED_OUT = "`agentrl generate` and `agentrl eval` roll such rows out"


def find_images(config: RunConfig, *, trains: bool) -> tuple[ImageInputs | None, str]:
    """(the model's processor, "") or (None, why images are refused).

    Raises:
        ConfigError: the model's processor cannot be read.
    """
    if trains:
        return None, f"training on images is not in this version: {_ROLLED_OUT}"
    if config.rollout.engine != "torch":
        # SGLang decodes a context with images and tokenizes it anew: its tokens are then no longer those sampled
        return None, f"'rollout.engine={config.rollout.engine}' takes no images: use 'rollout.engine=torch'"
    images = find_image_inputs(config.model)
    return images, "" if images else f"the model at '{config.model.path}' takes no images, or has no processor"
