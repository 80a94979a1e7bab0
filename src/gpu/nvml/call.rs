//! The names of NVML's C functions that the wrapper calls, so that people can look them up.

pub(super) const HANDLE: &str = "nvmlDeviceGetHandleByIndex_v2";
pub(super) const UUID: &str = "nvmlDeviceGetUUID";
pub(super) const NAME: &str = "nvmlDeviceGetName";
pub(super) const PCI: &str = "nvmlDeviceGetPciInfo_v3";
pub(super) const MIG: &str = "nvmlDeviceGetMigMode";
pub(super) const VIRTUALIZATION: &str = "nvmlDeviceGetVirtualizationMode";
pub(super) const ENERGY: &str = "nvmlDeviceGetTotalEnergyConsumption";
pub(super) const FIELDS: &str = "nvmlDeviceGetFieldValues";
pub(super) const POWER: &str = "nvmlDeviceGetPowerUsage";
pub(super) const CONSTRAINTS: &str = "nvmlDeviceGetPowerManagementLimitConstraints";
pub(super) const DEFAULT_LIMIT: &str = "nvmlDeviceGetPowerManagementDefaultLimit";
pub(super) const LIMIT: &str = "nvmlDeviceGetPowerManagementLimit";
pub(super) const ENFORCED_LIMIT: &str = "nvmlDeviceGetEnforcedPowerLimit";
pub(super) const REASONS: &str = "nvmlDeviceGetCurrentClocksThrottleReasons";
pub(super) const TEMPERATURE: &str = "nvmlDeviceGetTemperature";
pub(super) const CLOCK: &str = "nvmlDeviceGetClockInfo";
pub(super) const PERSISTENCE: &str = "nvmlDeviceGetPersistenceMode";
pub(super) const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
pub(super) const PROCESS_USE: &str = "nvmlDeviceGetProcessUtilization";
pub(super) const SET_LIMIT: &str = "nvmlDeviceSetPowerManagementLimit";
pub(super) const MEMORY_CLOCKS: &str = "nvmlDeviceGetSupportedMemoryClocks";
pub(super) const GRAPHICS_CLOCKS: &str = "nvmlDeviceGetSupportedGraphicsClocks";
pub(super) const MAX_CLOCK: &str = "nvmlDeviceGetMaxClockInfo";
pub(super) const LOCK_CLOCKS: &str = "nvmlDeviceSetGpuLockedClocks";
pub(super) const RESET_CLOCKS: &str = "nvmlDeviceResetGpuLockedClocks";
pub(super) const SET_PERSISTENCE: &str = "nvmlDeviceSetPersistenceMode";
