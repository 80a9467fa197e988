"""`actor.megatron.*`: parallel layout, recomputation and mixture-of-experts options of the Megatron backend."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt

from agentrl.config.base import Section

RecomputedModule = Literal["core_attn", "mlp", "moe", "shared_experts"]


class MegatronConfig(Section):
    """Parallel layout and options of the Megatron backend. The reference and the critic use the same layout."""

    tensor_model_parallel_size: PositiveInt = 1
    """Number of processes that share each layer's matrices (TP)."""
    sequence_parallel: bool | None = None
    """Divide the positions among the TP processes in operations that TP does not divide, such as layer norms. null:
    true if tensor_model_parallel_size is above 1."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Number of pipeline stages, each with a part of the layers (PP)."""
    virtual_pipeline_model_parallel_size: PositiveInt | None = None
    """Number of separate groups of layers per stage, for the interleaved pipeline schedule (VPP); null: 1."""
    num_layers_in_first_pipeline_stage: PositiveInt | None = None
    """Number of layers in the first pipeline stage. null: all stages without a set number get equally many layers."""
    num_layers_in_last_pipeline_stage: PositiveInt | None = None
    """Number of layers in the last pipeline stage. null: all stages without a set number get equally many layers."""
    context_parallel_size: PositiveInt = 1
    """Number of processes that compute the same samples together, each for a slice of the positions (CP)."""
    expert_model_parallel_size: PositiveInt = 1
    """Number of processes among which the experts of a layer are divided; each process holds complete experts (EP)."""
    expert_tensor_parallel_size: PositiveInt | None = None
    """Number of processes that share each expert's matrices (ETP); null: tensor_model_parallel_size."""
    use_distributed_optimizer: bool = True
    """Shard the optimizer state over the data-parallel processes (ZeRO-1)."""
    overlap_grad_reduce: bool = False
    """Sum gradients over the data-parallel processes during the backward pass; not with virtual pipeline stages."""
    overlap_param_gather: bool = False
    """Gather updated weights during the next forward pass; needs overlap_grad_reduce and use_distributed_optimizer. Not
    supported yet."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """Activations that the backward pass recomputes. full: those of complete layers. selective: those of
    recompute_modules. null: full with model.enable_gradient_checkpointing, else none."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With full: uniform recomputes all layers of a stage, in groups of recompute_num_layers; block recomputes only the
    first recompute_num_layers layers of each group of layers (VPP; without VPP, of each stage). null: uniform."""
    recompute_num_layers: PositiveInt | None = None
    """With full: number of layers per group (uniform), or of recomputed layers (block); null: 1."""
    recompute_modules: tuple[RecomputedModule, ...] = ()
    """With selective: modules that are recomputed; empty: core_attn."""
    hybrid_model: bool = False
    """Build Megatron-Core's HybridModel, the successor of the deprecated GPTModel; both give the same outputs."""
    moe_token_dispatcher_type: Literal["alltoall", "allgather"] = "alltoall"
    """How tokens reach the processes of their experts; both ways give the same results."""
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    """Data type of the router's scores; null: the data type of the activations."""
    moe_aux_loss_coeff: NonNegativeFloat = 0.0
    """Coefficient of the load-balancing loss; 0: off, as usual in RL."""
    moe_z_loss_coeff: NonNegativeFloat = 0.0
    """Coefficient of the z-loss of the router; 0: off."""
    moe_router_bias_update_rate: NonNegativeFloat = 0.0
    """Step size of the expert bias in models that have one (DeepSeek-V3); 0: the bias is frozen."""
    mtp_loss_scaling_factor: NonNegativeFloat = 0.0
    """Coefficient of the loss that trains the layers for multi-token prediction (DeepSeek-V3, GLM-4.5). The loss is the
    cross entropy of the trained tokens. It trains only these layers: the gradient of the policy does not change. Needs
    actor.share_prefixes=false. 0: these layers stay in checkpoints unchanged."""
    use_mbridge: bool | None = None
    """How Hugging Face weights are mapped. true: with megatron-bridge. false: with agentrl's own mapping; models that
    need megatron-bridge are refused. null: with megatron-bridge only for models that need it."""
    transformer_engine: bool | None = None
    """Use the layers of TransformerEngine. Not supported yet: all layers are those of torch and megatron-core."""

    @property
    def expert_tensor_size(self) -> int:
        """`expert_tensor_parallel_size`, else the tensor-parallel size."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def sequence_is_parallel(self) -> bool:
        """`sequence_parallel`; if null, true with tensor parallelism."""
        return self.tensor_model_parallel_size > 1 if self.sequence_parallel is None else self.sequence_parallel

    @property
    def num_layer_chunks(self) -> int:
        """Number of separate groups of layers per pipeline stage."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def virtual_stages(self) -> int | None:
        """`num_layer_chunks`; None if a pipeline stage has one group of layers, which needs no interleaved schedule."""
        return self.num_layer_chunks if self.num_layer_chunks > 1 else None

    @property
    def model_parallel_size(self) -> int:
        """Number of processes that compute one micro-batch together: TP x PP x CP."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
