"""Sending weights to SGLang servers: through disk, NCCL or shared memory."""
