"""verl's `actor_rollout_ref.rollout.*`."""

from __future__ import annotations

from agentrl.compat.verl.keys.actor import read_precision
from agentrl.compat.verl.keys.data import expand_home
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, choices, truth
from agentrl.compat.verl.keys.servers import SERVERS
from agentrl.errors import ConfigError

_ROLLOUT = "actor_rollout_ref.rollout"
_TURNS, _VAL, _AGENT = f"{_ROLLOUT}.multi_turn", f"{_ROLLOUT}.val_kwargs", f"{_ROLLOUT}.agent"
_SCORES = "sampled tokens are not scored again: the engine's log-probabilities are used"


def _engine(name: object) -> str:
    engines = {"hf": "torch", **{engine: engine for engine in choices("rollout.engine")}}
    if str(name) not in engines:
        raise ConfigError.keyless(
            f"'{name}' is not an engine of agentrl: set {_ROLLOUT}.name to sglang, or to torch, the embedded engine"
        )
    return engines[str(name)]


def _thinking(as_served: object) -> str:
    return "strip" if truth(as_served) else "keep"


SAMPLING: tuple[Row, ...] = (
    Mapped(f"{_ROLLOUT}.name", "rollout.engine", read=_engine, note="sglang, or torch (the default); hf becomes torch"),
    Mapped(
        f"{_ROLLOUT}.n", "rollout.n", 1, note="a group of one has advantage 0; in verl, its advantage is its raw score"
    ),
    Mapped(f"{_ROLLOUT}.temperature", "rollout.temperature", 1.0),
    Mapped(f"{_ROLLOUT}.top_p", "rollout.top_p", 1.0),
    Mapped(f"{_ROLLOUT}.top_k", "rollout.top_k", -1),
    Mapped(f"{_ROLLOUT}.dtype", "rollout.dtype", "bfloat16", read_precision),
    Mapped(f"{_ROLLOUT}.max_num_seqs", "rollout.max_num_seqs"),
    Mapped(f"{_ROLLOUT}.full_determinism", "rollout.deterministic"),
    Mapped(f"{_ROLLOUT}.prompt_length", "data.max_prompt_length"),
    Mapped(f"{_ROLLOUT}.response_length", "data.max_response_length"),
    Mapped(f"{_VAL}.n", "rollout.val_kwargs.n", 1, note="set to 1 if validation is greedy"),
    Mapped(f"{_VAL}.do_sample", "rollout.val_kwargs.do_sample", False, note="no effect, as in verl: see temperature"),
    Mapped(f"{_VAL}.temperature", "rollout.val_kwargs.temperature", 0.0, note="0 is greedy, above 0 samples"),
    Mapped(f"{_VAL}.top_p", "rollout.val_kwargs.top_p", 1.0),
    Mapped(f"{_VAL}.top_k", "rollout.val_kwargs.top_k", -1),
    Fixed(f"{_ROLLOUT}.do_sample", (True,), "training needs sampled rollouts: do_sample=True"),
    Fixed(f"{_ROLLOUT}.ignore_eos", (False,), "remove it: a turn ends at the end-of-turn token"),
    Fixed(f"{_ROLLOUT}.use_fire_sampling", (False,), "remove it"),
    Fixed(f"{_ROLLOUT}.skip_rollout", (False,), "remove it: trainer.mode=train_only trains on saved rollouts"),
    Fixed(
        f"{_ROLLOUT}.over_sample_rate",
        (0,),
        "set it to 0; use trainer.over_sampling, which starts more groups than a step needs (verl trains on fewer)",
    ),
    Mapped(f"{_ROLLOUT}.enable_rollout_routing_replay", "rollout.routed_experts"),
    *(Fixed(f"{_ROLLOUT}.{key}", (None,), "remove it") for key in ("quantization", "quantization_config_file")),
    *(Fixed(f"{_ROLLOUT}.{key}.enable", (None, False), "remove it") for key in ("mtp", "qat")),
    *(Hint(f"{_ROLLOUT}.{key}.*", f"no effect without {key}.enable") for key in ("mtp", "qat")),
    Fixed(
        f"{_ROLLOUT}.nnodes",
        (0, 1),
        "set it to 0: the number of SGLang servers is rollout.sglang.num_replicas (docs/cluster.md)",
        "SGLang servers are placed one by one: rollout.sglang.num_replicas sets their number",
    ),
    Hint(f"{_ROLLOUT}.n_gpus_per_node", "set rollout.sglang.num_replicas for the number of SGLang servers"),
)

TURNS: tuple[Row, ...] = (
    Mapped(
        f"{_TURNS}.enable",
        (),
        note="if true, with tools and without default_agent_loop, the default loop is tool_agent",
    ),
    Mapped(f"{_TURNS}.tool_config_path", "rollout.multi_turn.tool_config_path", read=expand_home),
    Mapped(f"{_TURNS}.function_tool_path", "rollout.multi_turn.function_tool_path", read=expand_home),
    Mapped(f"{_TURNS}.interaction_config_path", "rollout.multi_turn.interaction_config_path", read=expand_home),
    Mapped(
        f"{_TURNS}.format",
        "rollout.multi_turn.format",
        note="default: `auto`, the format of the chat template (verl: `hermes`)",
    ),
    Mapped(f"{_TURNS}.max_assistant_turns", "rollout.multi_turn.max_assistant_turns"),
    Mapped(f"{_TURNS}.max_turns", "rollout.multi_turn.max_assistant_turns", note="older name"),
    Mapped(
        f"{_TURNS}.max_user_turns",
        (),
        note="verl also counts tool answers: a limit of N becomes `rollout.multi_turn.max_assistant_turns` N + 1",
    ),
    Mapped(f"{_TURNS}.max_parallel_calls", "rollout.multi_turn.max_parallel_calls", 1),
    Mapped(f"{_TURNS}.max_tool_response_length", "rollout.multi_turn.max_tool_response_length", 256, note="characters"),
    Mapped(
        f"{_TURNS}.tool_response_truncate_side",
        "rollout.multi_turn.tool_response_truncate_side",
        "middle",
        note="the side that is cut; before May 2026, verl's `left` and `right` named the side that is kept",
    ),
    Mapped(
        f"{_TURNS}.use_inference_chat_template",
        "rollout.multi_turn.thinking",
        read=_thinking,
        note="`true` becomes `strip`, `false` becomes `keep`",
    ),
    Hint(f"{_TURNS}.tokenization_sanity_check_mode", "sampled tokens are never re-tokenized"),
    Fixed(f"{_TURNS}.num_repeat_rollouts", (None,), "use actor_rollout_ref.rollout.n"),
    Mapped(f"{_AGENT}.default_agent_loop", "rollout.agent.default_agent_loop", "single_turn_agent"),
    *(
        Mapped(key, "rollout.agent.default_agent_loop", note="short name")
        for key in (f"{_ROLLOUT}.agent_loop", "rollout.agent_loop")
    ),
    Mapped(f"{_AGENT}.agent_loop_config_path", "rollout.agent.agent_loop_config_path", read=expand_home),
    Fixed(f"{_AGENT}.custom_async_server.*", (None,), "remove it: write your own agent loop"),
    Hint(f"{_AGENT}.num_workers", "one event loop runs all rollouts; see trainer.max_concurrent_rollouts"),
)

SERVING: tuple[Row, ...] = (
    *SERVERS,
    *(
        Hint(f"{_ROLLOUT}.{key}", _SCORES)
        for key in (
            "log_prob_micro_batch_size_per_gpu",
            "log_prob_micro_batch_size",
            "log_prob_use_dynamic_bsz",
            "log_prob_max_token_len_per_gpu",
            "calculate_log_probs",
            "logprobs_mode",
        )
    ),
    Hint(f"{_ROLLOUT}.seed", "all random numbers come from trainer.seed"),
    Hint(f"{_ROLLOUT}.trace.*", "a run's samples.json and report.html show rollouts"),
)
