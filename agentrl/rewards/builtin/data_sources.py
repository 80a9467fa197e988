"""data_source -> built-in reward, for `reward.name: auto`."""

from __future__ import annotations

_GSM8K = ("openai/gsm8k", "gsm8k")
_MATH = (
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
    "HuggingFaceH4/MATH-500",
    "hendrycks/competition_math",
    "EleutherAI/hendrycks_math",
    "math_reasoning",
    "numina_aops_forum",
    "numina_synthetic_math",
    "numina_amc_aime",
    "numina_synthetic_amc",
    "numina_cn_k12",
    "numina_olympiads",
    "AI-MO/NuminaMath-CoT",
    "AI-MO/NuminaMath-1.5",
    "agentica-org/DeepScaleR-Preview-Dataset",
    "open-r1/OpenR1-Math-220k",
)
_MATH_DAPO = (
    "math",
    "math_dapo",
    "math_dapo_reasoning",
    "BytedTsinghua-SIA/DAPO-Math-17k",
    "BytedTsinghua-SIA/AIME-2024",
    "HuggingFaceH4/aime_2024",
    "Maxwell-Jia/AIME_2024",
)
_CODE = (
    "code",
    "code_generation",
    "codecontests",
    "apps",
    "codeforces",
    "taco",
    "deepmind/code_contests",
    "codeparrot/apps",
    "BAAI/TACO",
)
_GEO3K = ("hiyouga/geometry3k", "geometry3k", "geometry")
_SEARCH_QA = tuple(
    f"searchR1_{name}" for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
)
_QA = (
    "qa",
    "trivia",
    "trivia_qa",
    "mandarjoshi/trivia_qa",
    "nq_open",
    "hotpotqa/hotpot_qa",
    "squad",
    "rajpurkar/squad",
)

SOURCES = {
    source: name
    for name, sources in {
        "gsm8k": _GSM8K,
        "math": _MATH,
        "math_dapo": _MATH_DAPO,
        "geo3k": _GEO3K,
        "search_qa": _SEARCH_QA,
        "qa": _QA,
        "classification": ("classification",),
        "exact_match": ("exact_match",),
        "code": _CODE,
        "verifier": ("task_folder",),
    }.items()
    for source in sources
}
"""data_source -> built-in reward; see also `reward_of`, for names that begin with `aime`."""


def reward_of(data_source: str) -> str | None:
    """Return the name of the built-in reward for a data source; None if there is none."""
    return SOURCES.get(data_source) or ("math_dapo" if data_source.startswith("aime") else None)
