"""verl's optimizer sections of actor and critic."""

from __future__ import annotations

from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, one_of


def optim_rows(verls: str, ours: str, grad_clip: str, lr: float) -> tuple[Row, ...]:
    """Table rows of an optimizer section.

    Args:
        verls, ours: name of the section in verl and in agentrl.
        grad_clip: agentrl's key of the maximum gradient norm, which verl also allows in this section.
        lr: verl's default.
    """
    schedule, optimizer = one_of(f"{ours}.lr_scheduler_type"), one_of(f"{ours}.name")
    return (
        Mapped(f"{verls}.lr", f"{ours}.lr", lr),
        Mapped(f"{verls}.betas", f"{ours}.betas", (0.9, 0.999)),
        Mapped(f"{verls}.weight_decay", f"{ours}.weight_decay", 0.01, note="of matrices; verl decays norms too"),
        Mapped(f"{verls}.clip_grad", grad_clip),
        Mapped(
            f"{verls}.lr_warmup_steps",
            f"{ours}.lr_warmup_steps",
            read=lambda value: max(0, int(float(value))),
            note="verl counts steps, agentrl updates: multiplied by the updates of a step",
        ),
        Mapped(
            f"{verls}.lr_scheduler_type",
            f"{ours}.lr_scheduler_type",
            "constant",
            schedule,
            "runs down over all updates of the run",
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
        Fixed(f"{verls}.min_lr", (None, 0), f"give it as a share of lr: {verls}.min_lr_ratio"),
        Fixed(f"{verls}.lr_warmup_init", (None, 0), "leave it out: a warm-up begins at 0"),
        Fixed(f"{verls}.lr_decay_steps", (None,), f"leave it out (the run's own length), or {ours}.total_updates"),
        Fixed(f"{verls}.weight_decay_incr_style", (None, "constant"), "leave it out: weight decay stays as it is"),
        *(
            Hint(f"{verls}.{key}", "belongs to Megatron's WSD schedule, which lr_decay_style would choose")
            for key in ("lr_wsd_decay_style", "lr_wsd_decay_steps")
        ),
        Hint(f"{verls}.use_checkpoint_opt_param_scheduler", "a run that goes on keeps its schedule"),
        Mapped(
            f"{verls}.optimizer",
            f"{ours}.name",
            read=lambda v: "adamw" if v == "adam" else optimizer(str(v).lower()),
            note="AdamW; Megatron's adam is the same",
        ),
        Fixed(f"{verls}.optimizer_impl", ("torch.optim",), "leave it out: torch's own AdamW is used"),
        Mapped(
            f"{verls}.lr_warmup_steps_ratio",
            f"{ours}.lr_warmup_steps_ratio",
            note="of the run's updates, where verl rounds down to whole steps: less than a step longer; "
            "lr_warmup_steps above 0 goes before it, as in verl",
        ),
        Hint(
            f"{verls}.total_training_steps",
            f"schedules run over the run's own length, which verl's trainer sets it to, or over {ours}.total_updates",
        ),
        Fixed(f"{verls}.num_cycles", (0.5,), "set it to 0.5: half a cosine"),
        Fixed(f"{verls}.override_optimizer_config.*", (None,), f"use {ours}.eps, {ours}.betas"),
        Hint(f"{verls}.zero_indexed_step", "the first update of a warm-up already moves"),
    )
