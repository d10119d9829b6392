"""vLLM's CUDA platform with the values of a GB10 in place of those from the driver."""

from __future__ import annotations

from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability


class SparkPlatform(CudaPlatformBase):
    """One GB10: sm_121, 48 multiprocessors, 121.7 GiB of memory shared with the host."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(12, 1)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "NVIDIA GB10"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 130663706624

    @classmethod
    def is_fully_connected(cls, device_ids: list[int]) -> bool:
        return True

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:
        return True

    @classmethod
    def device_count(cls) -> int:
        return 1

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 48

    @classmethod
    def log_warnings(cls) -> None:
        pass
