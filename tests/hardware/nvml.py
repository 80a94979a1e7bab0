"""Functions of NVML that read, called directly, for comparison with wattune."""

import ctypes
import threading
import time


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; the value of the fields used here is an unsigned integer."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    ]


POWER_AVERAGE, POWER_INSTANT = 185, 186


class Nvml:
    """The GPUs of this machine. A value that the driver refuses is None."""

    def __init__(self, path="libnvidia-ml.so.1"):
        self.library = ctypes.CDLL(path)
        code = self.library.nvmlInit_v2()
        if code:
            raise OSError(f"nvmlInit_v2 of {path} returns {code}")
        count = ctypes.c_uint()
        self.library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self.devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
            self.devices.append(device)

    def read(self, name, index, kind=ctypes.c_uint):
        value = kind()
        code = getattr(self.library, name)(self.devices[index], ctypes.byref(value))
        return None if code else value.value

    def text(self, name, index):
        value = ctypes.create_string_buffer(96)
        code = getattr(self.library, name)(self.devices[index], value, 96)
        return None if code else value.value.decode()

    def energy_mj(self, index):
        return self.read("nvmlDeviceGetTotalEnergyConsumption", index, ctypes.c_ulonglong)

    def field(self, index, field):
        value = FieldValue(field=field)
        code = self.library.nvmlDeviceGetFieldValues(self.devices[index], 1, ctypes.byref(value))
        return None if code or value.code else value.value

    def temperature(self, index):
        value = ctypes.c_uint()
        code = self.library.nvmlDeviceGetTemperature(self.devices[index], 0, ctypes.byref(value))
        return None if code else value.value

    def range_mw(self, index):
        low, high = ctypes.c_uint(), ctypes.c_uint()
        code = self.library.nvmlDeviceGetPowerManagementLimitConstraints(
            self.devices[index], ctypes.byref(low), ctypes.byref(high)
        )
        return (None, None) if code else (low.value, high.value)

    def settings(self, index):
        """Settings of a GPU that a privileged program can change."""
        return {
            "requested limit, mW": self.read("nvmlDeviceGetPowerManagementLimit", index),
            "enforced limit, mW": self.read("nvmlDeviceGetEnforcedPowerLimit", index),
            "default limit, mW": self.read("nvmlDeviceGetPowerManagementDefaultLimit", index),
            "range of limits, mW": self.range_mw(index),
            "persistence mode": self.read("nvmlDeviceGetPersistenceMode", index),
        }


class Sampler(threading.Thread):
    """Reads the energy counter of a GPU every few milliseconds."""

    def __init__(self, nvml, index, every_s=0.005):
        super().__init__(daemon=True)
        self.nvml, self.index, self.every_s = nvml, index, every_s
        self.rows, self.stopped = [], threading.Event()

    def run(self):
        while not self.stopped.wait(self.every_s):
            self.rows.append((time.time(), self.nvml.energy_mj(self.index)))

    def stop(self):
        self.stopped.set()
        self.join()

    def joules_at(self, when):
        """The counter's value at a time, by interpolation."""
        before = [row for row in self.rows if row[0] <= when][-1]
        after = next(row for row in self.rows if row[0] >= when)
        share = 0 if after[0] == before[0] else (when - before[0]) / (after[0] - before[0])
        return (before[1] + share * (after[1] - before[1])) / 1000
