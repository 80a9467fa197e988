"""verl's `data.*` and `actor_rollout_ref.model.*`."""

from __future__ import annotations

from pathlib import Path

from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, one_of

_MODEL = "actor_rollout_ref.model"
_MM_INPUTS = "return_multi_modal_inputs"
_LOADER = "rows are read one by one, when they are needed"
_SPEED = "a speed or memory option that only verl has"


def expand_home(value: object) -> str:
    """Replace `~` by the home folder."""
    return str(Path(str(value)).expanduser()) if str(value).startswith("~") else str(value)


def lora_section(section: str) -> tuple[Mapped, ...]:
    """Table rows of a LoRA section."""
    names = {"rank": "lora_rank", "alpha": "lora_alpha", "target_modules": "target_modules"}
    return tuple(Mapped(f"{section}.{key}", f"model.{target}") for key, target in names.items())


DATA: tuple[Row, ...] = (
    Mapped("data.train_files", "data.train_files", note="one file or a list"),
    Mapped("data.val_files", "data.val_files", note="one file or a list"),
    Mapped("data.prompt_key", "data.prompt_key", "prompt"),
    Mapped("data.train_batch_size", "data.train_batch_size", 1024, note="prompts per step, as in verl"),
    Mapped("data.max_prompt_length", "data.max_prompt_length", 512),
    Mapped("data.max_response_length", "data.max_response_length", 512),
    Mapped("data.filter_overlong_prompts", "data.filter_overlong_prompts", False),
    Mapped(
        "data.truncation",
        "data.truncation",
        "error",
        one_of("data.truncation"),
        "left, middle and right cut the last user text; verl cuts the rendered prompt, including system text and tools",
    ),
    Mapped(
        "data.dataset_weights", "data.dataset_weights", note="one weight per train file: how often the file is drawn"
    ),
    Mapped("data.shuffle", "data.shuffle", True),
    Mapped("data.seed", "data.seed"),
    Mapped("data.train_max_samples", "data.train_max_samples", -1),
    Mapped("data.val_max_samples", "data.val_max_samples", -1),
    Mapped("data.apply_chat_template_kwargs", "data.apply_chat_template_kwargs"),
    Mapped("data.tool_config_path", "rollout.multi_turn.tool_config_path", read=expand_home),
    Mapped("data.function_tool_path", "rollout.multi_turn.function_tool_path", read=expand_home),
    Fixed("data.reward_fn_key", ("data_source",), "name the column data_source"),
    Hint("data.gen_batch_size", "with filter_groups, tasks are drawn one by one until a step has its groups"),
    Mapped("data.custom_cls.path", "data.custom_cls.path", read=expand_home, note="a Python file"),
    Mapped("data.custom_cls.name", "data.custom_cls.name"),
    Fixed("data.sampler.*", (None,), "use data.curriculum, or data.shuffle and data.seed"),
    Fixed("data.datagen.*", (None,), "let a tool or reward add tasks: data.online.max_tasks"),
    *(
        Fixed(f"data.{key}", (None,), "for SFT use `agentrl train algorithm.name=sft` with a column messages")
        for key in (
            "response_key",
            "prompt_dict_keys",
            "response_dict_keys",
            "micro_batch_size",
            "micro_batch_size_per_gpu",
            "multiturn.*",
            "max_length",
            "pad_mode",
            "use_dynamic_bsz",
            "max_token_len_per_gpu",
        )
    ),
    Mapped("data.filter_overlong_prompts_workers", "data.filter_overlong_prompts_workers", note="threads"),
    *(Hint(f"data.{key}", _LOADER) for key in ("dataloader_num_workers", "use_shm")),
    Hint("data.val_batch_size", "validation runs all its tasks at once"),
    Hint("data.validation_shuffle", "validation uses every row, so the order has no effect"),
    Hint("data.tokenizer", "the model's tokenizer is used, or actor_rollout_ref.model.tokenizer_path"),
    Hint("data.trust_remote_code", "use actor_rollout_ref.model.trust_remote_code"),
    *(
        Hint(f"data.{key}", "the prompt is always kept as messages")
        for key in ("return_raw_chat", "return_raw_input_ids", "return_full_prompt")
    ),
    *(
        Fixed(f"data.{modality}_key", (f"{modality}s",), f"name the column {modality}s")
        for modality in ("image", "video", "audio")
    ),
    Fixed("data.mm_processor_kwargs.*", (None,), "set them in processor_config.json of the model"),
    *(Hint(f"data.{key}", "the model's processor decides this") for key in ("image_patch_size", _MM_INPUTS)),
)

MODEL: tuple[Row, ...] = (
    Mapped(f"{_MODEL}.path", "model.path", read=expand_home),
    Mapped(f"{_MODEL}.tokenizer_path", "model.tokenizer_path", read=expand_home),
    Mapped(f"{_MODEL}.trust_remote_code", "model.trust_remote_code", False),
    Mapped(f"{_MODEL}.enable_gradient_checkpointing", "model.enable_gradient_checkpointing", True),
    Mapped(f"{_MODEL}.override_config.attn_implementation", "model.attn_implementation"),
    Fixed(f"{_MODEL}.override_config.moe_config.freeze_moe_router", (False,), "use actor.freeze_modules"),
    Fixed(f"{_MODEL}.override_config.*", (None,), "change config.json of the model"),
    Fixed(f"{_MODEL}.torch_dtype", (None,), "use actor_rollout_ref.actor.fsdp_config.model_dtype"),
    Fixed(f"{_MODEL}.custom_chat_template", (None,), "write it to a file and set model.chat_template=FILE"),
    Fixed(f"{_MODEL}.hf_config_path", (None,), "put config.json next to the weights"),
    Fixed(f"{_MODEL}.external_lib", (None,), "import it in your reward or agent loop file"),
    Mapped(f"{_MODEL}.lora_rank", "model.lora_rank", 0),
    Mapped(f"{_MODEL}.lora_alpha", "model.lora_alpha", 16),
    Mapped(f"{_MODEL}.target_modules", "model.target_modules", "all-linear", note="names of modules, or ends of names"),
    Mapped(f"{_MODEL}.exclude_modules", "model.exclude_modules"),
    Mapped(f"{_MODEL}.lora_adapter_path", "model.lora_adapter_path", read=expand_home),
    *lora_section(f"{_MODEL}.lora"),
    Mapped(f"{_MODEL}.lora.exclude_modules", "model.exclude_modules"),
    Mapped(f"{_MODEL}.lora.adapter_path", "model.lora_adapter_path", read=expand_home),
    Fixed(f"{_MODEL}.lora.dropout", (0,), "adapters are trained without dropout, like the rest of the policy"),
    Hint(f"{_MODEL}.lora.*", "an adapter option that only verl has"),
    *(
        Hint(f"{_MODEL}.{key}", _SPEED)
        for key in (
            "use_remove_padding",
            "use_liger",
            "use_fused_kernels",
            "fused_kernel_options.*",
            "tiled_mlp.*",
            "use_shm",
            "enable_activation_offload",
        )
    ),
)
