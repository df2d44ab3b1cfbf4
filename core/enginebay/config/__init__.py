"""The config: TOML → pydantic, with the environment and ``--set`` on top; every fault reported at once."""

from enginebay.config._explain import explain_fault, fault_path, join_faults
from enginebay.config._faults import refuse
from enginebay.config._from_vllm import Translation, from_vllm
from enginebay.config._load import Resolved, load
from enginebay.config._models import (
    CacheConfig,
    DeadlinesConfig,
    DeviceConfig,
    EngineConfig,
    EngineSection,
    ExecutorConfig,
    ModelConfig,
    ParallelConfig,
    RunnerConfig,
    SchedulerConfig,
    ServerConfig,
    TelemetryConfig,
    WorkerConfig,
)
from enginebay.config._recovery import RecoveryConfig
from enginebay.config._status import StatusConfig

__all__ = [
    "CacheConfig",
    "DeadlinesConfig",
    "DeviceConfig",
    "EngineConfig",
    "EngineSection",
    "ExecutorConfig",
    "ModelConfig",
    "ParallelConfig",
    "RecoveryConfig",
    "Resolved",
    "RunnerConfig",
    "SchedulerConfig",
    "ServerConfig",
    "StatusConfig",
    "TelemetryConfig",
    "Translation",
    "WorkerConfig",
    "explain_fault",
    "fault_path",
    "from_vllm",
    "join_faults",
    "load",
    "refuse",
]
