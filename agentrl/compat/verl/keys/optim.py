"""verl's optimizer sections of actor and critic."""

from __future__ import annotations

from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, one_of


def optim_rows(verls: str, ours: str, grad_clip: str, lr: float) -> tuple[Row, ...]:
    """Table rows of an optimizer section.

    Args:
        verls, ours: name of the section in verl and in agentrl.
        grad_clip: agentrl's key for the maximum gradient norm. In verl, the section has this option as `clip_grad`.
        lr: verl's default of the learning rate.
    """
    schedule, optimizer = one_of(f"{ours}.lr_scheduler_type"), one_of(f"{ours}.name")
    return (
        Mapped(f"{verls}.lr", f"{ours}.lr", lr),
        Mapped(f"{verls}.betas", f"{ours}.betas", (0.9, 0.999)),
        Mapped(
            f"{verls}.weight_decay",
            f"{ours}.weight_decay",
            0.01,
            note="applies only to matrices; verl also decays norms",
        ),
        Mapped(f"{verls}.clip_grad", grad_clip),
        Mapped(
            f"{verls}.lr_warmup_steps",
            f"{ours}.lr_warmup_steps",
            read=lambda value: max(0, int(float(value))),
            note="verl counts steps, agentrl counts updates: the value is multiplied by the updates per step",
        ),
        Mapped(
            f"{verls}.lr_scheduler_type",
            f"{ours}.lr_scheduler_type",
            "constant",
            schedule,
            "linear and cosine decay over all updates of the run",
        ),
        Mapped(
            f"{verls}.warmup_style",
            f"{ours}.lr_scheduler_type",
            read=schedule,
            note="older name",
        ),
        Mapped(
            f"{verls}.lr_decay_style",
            f"{ours}.lr_scheduler_type",
            read=schedule,
            note="Megatron's name",
        ),
        Mapped(f"{verls}.min_lr_ratio", f"{ours}.min_lr_ratio"),
        Fixed(f"{verls}.min_lr", (None, 0), f"use {verls}.min_lr_ratio, a fraction of lr"),
        Fixed(f"{verls}.lr_warmup_init", (None, 0), "remove it: the first of N warm-up updates has lr / N"),
        Fixed(
            f"{verls}.lr_decay_steps",
            (None,),
            f"remove it (the schedule has the length of the run), or set {ours}.total_updates",
        ),
        Fixed(f"{verls}.weight_decay_incr_style", (None, "constant"), "remove it: weight decay is constant"),
        *(
            Hint(f"{verls}.{key}", "part of Megatron's WSD schedule, selected by lr_decay_style")
            for key in ("lr_wsd_decay_style", "lr_wsd_decay_steps")
        ),
        Hint(f"{verls}.use_checkpoint_opt_param_scheduler", "a resumed run keeps its schedule"),
        Mapped(
            f"{verls}.optimizer",
            f"{ours}.name",
            read=lambda v: "adamw" if v == "adam" else optimizer(str(v).lower()),
            note="AdamW; Megatron's adam is the same",
        ),
        Fixed(f"{verls}.optimizer_impl", ("torch.optim",), "remove it: AdamW of torch is used"),
        Mapped(
            f"{verls}.lr_warmup_steps_ratio",
            f"{ours}.lr_warmup_steps_ratio",
            note="a fraction of the run's updates; verl rounds the warm-up down to full steps; "
            "lr_warmup_steps above 0 takes precedence, as in verl",
        ),
        Hint(
            f"{verls}.total_training_steps",
            f"schedules have the length of the run, as in verl's trainer, unless {ours}.total_updates is set",
        ),
        Fixed(f"{verls}.num_cycles", (0.5,), "set it to 0.5: the schedule is half a cosine"),
        Fixed(f"{verls}.override_optimizer_config.*", (None,), f"use {ours}.eps or {ours}.betas"),
        Hint(f"{verls}.zero_indexed_step", "the first update of a warm-up has a learning rate above 0"),
    )
