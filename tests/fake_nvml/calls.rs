//! The entry and exit of every call: the process's one lock, delays, refusals, pointers.

use std::{
    ffi::{CStr, c_char, c_uint},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::{
    codes::{GPU_IS_LOST, INSUFFICIENT_SIZE, INVALID_ARGUMENT, Outcome, SUCCESS, UNINITIALIZED, UNKNOWN},
    driver::Driver,
    gpu::FakeGpu,
    state::State,
    store::{Held, complain},
};

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

fn driver() -> MutexGuard<'static, Option<Driver>> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the library, or opens it again.
pub(crate) fn open(call: &str) -> Outcome<()> {
    let mut slot = driver();
    if slot.is_none() {
        let new = Driver::open().map_err(|why| {
            complain(&why);
            UNKNOWN
        })?;
        *slot = Some(new);
    }
    let outcome = match slot.as_mut() {
        Some(open) => scripted(open, call).map(|()| open.opened += 1),
        None => Err(UNKNOWN),
    };
    if slot.as_ref().is_some_and(|d| d.opened == 0)
        && let Some(unused) = slot.take()
    {
        unused.close();
    }
    outcome
}

/// Closes the library if this was the process's last open.
pub(crate) fn close() -> Outcome<()> {
    let mut slot = driver();
    let open = slot.as_mut().ok_or(UNINITIALIZED)?;
    open.opened -= 1;
    if open.opened == 0
        && let Some(last) = slot.take()
    {
        last.close();
    }
    Ok(())
}

/// Makes a call that names no GPU.
pub(crate) fn on_system<T>(call: &str, body: impl FnOnce(&mut Driver) -> Outcome<T>) -> Outcome<T> {
    let mut guard = driver();
    let driver = guard.as_mut().ok_or(UNINITIALIZED)?;
    driver.refresh()?;
    scripted(driver, call)?;
    body(driver)
}

fn scripted(driver: &Driver, call: &str) -> Outcome<()> {
    match driver.script.fail_calls.get(call) {
        Some(&code) if code != SUCCESS => Err(code),
        _ => Ok(()),
    }
}

/// One call on one present GPU, under the process's lock.
pub(crate) struct Call<'a> {
    driver: &'a mut Driver,
    slot: usize,
}

impl Call<'_> {
    pub(crate) fn gpu(&self) -> &FakeGpu {
        self.driver.gpu(self.slot)
    }

    pub(crate) fn state(&self) -> State {
        self.driver.state(self.slot)
    }

    pub(crate) fn index(&self) -> Outcome<u32> {
        self.driver.index(self.slot)
    }

    pub(crate) fn handle(&self) -> nvmlDevice_t {
        self.driver.handle(self.slot)
    }

    pub(crate) fn energy_mj(&mut self) -> Outcome<u64> {
        self.driver.energy_mj(self.slot)
    }

    pub(crate) fn change(&mut self, held: &Held, change: impl FnOnce(&mut State)) {
        self.driver.change(self.slot, held, change);
    }
}

/// The way in which a call names its GPU: a handle, or a look-up key.
pub(crate) trait Target {
    /// Returns the slot, and the generation if the caller is bound to one.
    fn find(&self, driver: &Driver) -> Outcome<(usize, Option<u32>)>;
}

impl Target for nvmlDevice_t {
    fn find(&self, driver: &Driver) -> Outcome<(usize, Option<u32>)> {
        let (slot, generation) = driver.resolve(*self)?;
        Ok((slot, Some(generation)))
    }
}

impl<F: Fn(u32, &FakeGpu) -> bool> Target for F {
    fn find(&self, driver: &Driver) -> Outcome<(usize, Option<u32>)> {
        driver.find(self).map(|slot| (slot, None))
    }
}

/// Waits for the scripted duration without a lock, so that only this call is slow.
fn arrive(call: &str, target: &impl Target) -> Outcome<(MutexGuard<'static, Option<Driver>>, usize, Option<u32>)> {
    let mut waited = false;
    loop {
        let mut guard = driver();
        let driver = guard.as_mut().ok_or(UNINITIALIZED)?;
        driver.refresh()?;
        let (slot, generation) = target.find(driver)?;
        match driver.gpu(slot).pause(call) {
            Some(pause) if !waited => {
                drop(guard);
                thread::sleep(pause);
                waited = true;
            }
            _ => return Ok((guard, slot, generation)),
        }
    }
}

/// Refuses the call if the script or a loss does.
fn admit(driver: &mut Driver, call: &str, slot: usize, generation: Option<u32>) -> Outcome<()> {
    driver.meet(slot)?;
    if generation.is_some_and(|g| g != driver.state(slot).generation) {
        return Err(GPU_IS_LOST);
    }
    match driver.gpu(slot).fail_calls.get(call) {
        Some(&code) if code != SUCCESS => Err(code),
        _ => Ok(()),
    }
}

/// Makes a read-only call on a GPU.
pub(crate) fn on_gpu<T>(
    call: &str,
    target: &impl Target,
    body: impl FnOnce(&mut Call<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let (mut guard, slot, generation) = arrive(call, target)?;
    let driver = guard.as_mut().ok_or(UNINITIALIZED)?;
    admit(driver, call, slot, generation)?;
    body(&mut Call { driver, slot })
}

/// Makes a call that changes a GPU, and logs it whatever its result, in the order of the effects.
pub(crate) fn on_write(
    call: &str,
    device: nvmlDevice_t,
    args: &str,
    body: impl FnOnce(&mut Call<'_>, &Held) -> Outcome<()>,
) -> nvmlReturn_t {
    let (mut guard, slot, generation) = match arrive(call, &device) {
        Ok(arrived) => arrived,
        Err(code) => {
            if let Some(driver) = driver().as_ref() {
                driver.log(None, call, args, Err(code));
            }
            return code;
        }
    };
    let Some(driver) = guard.as_mut() else {
        return UNINITIALIZED;
    };
    // Before the lock, which it may take itself; the settling below then sees the latest script.
    let admitted = admit(driver, call, slot, generation);
    let outcome = driver.exclusive().and_then(|held| {
        driver.settle(&held);
        let outcome = admitted
            .and_then(|()| {
                let same = generation.is_none_or(|g| g == driver.state(slot).generation);
                if same { Ok(()) } else { Err(GPU_IS_LOST) }
            })
            .and_then(|()| match driver.gpu(slot).ignores(call) {
                true => Ok(()),
                false => body(&mut Call { driver, slot }, &held),
            })
            .and_then(|()| match driver.gpu(slot).fail_after_calls.get(call) {
                Some(&code) if code != SUCCESS => Err(code),
                _ => Ok(()),
            });
        driver.log(Some(slot), call, args, outcome);
        outcome
    });
    code(outcome)
}

pub(crate) fn code(outcome: Outcome<()>) -> nvmlReturn_t {
    outcome.err().unwrap_or(SUCCESS)
}

/// Writes a value to the caller's place.
///
/// # Safety
/// `out` is null or may be written.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Outcome<()> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller answers for the rest.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text to the caller's buffer, if it fits with its NUL.
///
/// # Safety
/// `out` is null or may be written for `length` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Outcome<()> {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its end mark are at most `length` bytes.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.cast::<u8>().add(text.len()).write(0);
    }
    Ok(())
}

/// Reads a text of the caller.
///
/// # Safety
/// `text` is null or ends with a NUL.
pub(crate) unsafe fn take_text(text: *const c_char) -> Outcome<String> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller answers for the end mark.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(String::from).map_err(|_| INVALID_ARGUMENT)
}

/// Exports functions of the common form: a handle, and a place for one value.
macro_rules! getters {
    ($($name:ident($value:ty) = $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            device: ::nvml_wrapper_sys::bindings::nvmlDevice_t,
            out: *mut $value,
        ) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            let body: fn(&mut $crate::calls::Call<'_>) -> $crate::codes::Outcome<$value> = $body;
            let outcome = $crate::calls::on_gpu(stringify!($name), &device, body);
            // SAFETY: the caller passes a place for the value, or null.
            $crate::calls::code(outcome.and_then(|v| unsafe { $crate::calls::put(out, v) }))
        }
    )*};
}
