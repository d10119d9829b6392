#!/bin/bash
# The launch of an engine without weights, from the folder that has models/.
export VLLM_USE_DEEP_GEMM=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 OMP_NUM_THREADS=4
exec vllm serve models/gemma-4-31b --load-format dummy --max-model-len 32768 --max-num-batched-tokens 8192 --attention-backend TRITON_ATTN --served-model-name gemma-4-31b --uds /tmp/run/api.sock --quantization fp8 --gpu-memory-utilization 0.9 --max-num-seqs 32 --scheduling-policy priority --reasoning-parser gemma4 --tool-call-parser gemma4 --enable-auto-tool-choice
