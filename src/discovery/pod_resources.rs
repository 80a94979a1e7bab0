//! Parses the kubelet's list of pods and their devices (`v1.ListPodResourcesResponse`, a protocol buffer).

use wattune_core::identity::Pod;

/// A device with the pod to which the kubelet gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    /// Id of the device: for NVIDIA's plugin the UUID of a GPU or of a MIG slice.
    pub(super) device: String,
    pub(super) pod: Pod,
}

/// The reason why a message is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kubelet's answer is not a valid protocol buffer")]
pub(super) struct Malformed;

/// Parses the message: `pod_resources` (1) with `name` (1), `namespace` (2) and `containers` (3); these with `name` (1)
/// and `devices` (2), these with `device_ids` (2). Other fields are skipped.
pub(super) fn parse(message: &[u8]) -> Result<Vec<Assigned>, Malformed> {
    let mut found = Vec::new();
    for pod in nested(message, 1)? {
        let (name, namespace) = (text(pod, 1)?, text(pod, 2)?);
        for container in nested(pod, 3)? {
            let pod = Pod { namespace: namespace.clone(), name: name.clone(), container: text(container, 1)? };
            for devices in nested(container, 2)? {
                for id in nested(devices, 2)? {
                    let id = std::str::from_utf8(id).map_err(|_| Malformed)?;
                    // Time-sliced GPUs have one id for each slice of time: "<uuid>::<number>".
                    let device = id.split("::").next().unwrap_or(id).to_owned();
                    found.push(Assigned { device, pod: pod.clone() });
                }
            }
        }
    }
    Ok(found)
}

/// Returns the last text with this number; empty if there is none.
fn text(message: &[u8], number: u64) -> Result<String, Malformed> {
    let last = nested(message, number)?.pop().unwrap_or_default();
    String::from_utf8(last.to_vec()).map_err(|_| Malformed)
}

/// Returns the values of the fields of variable length with this number, in order.
fn nested(mut message: &[u8], number: u64) -> Result<Vec<&[u8]>, Malformed> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => drop(varint(&mut message)?),
            1 => drop(take(&mut message, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).map_err(|_| Malformed)?;
                let value = take(&mut message, length)?;
                if tag >> 3 == number {
                    found.push(value);
                }
            }
            5 => drop(take(&mut message, 4)?),
            _ => return Err(Malformed),
        }
    }
    Ok(found)
}

fn varint(message: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(message, 1)?[0];
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if shift == 63 && bits > 1 {
            return Err(Malformed);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (value, rest) = message.split_at_checked(length).ok_or(Malformed)?;
    *message = rest;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut message = vec![number << 3 | 2, u8::try_from(value.len()).expect("short")];
        message.extend(value);
        message
    }

    fn pod(namespace: &str, name: &str, container: &str, devices: &[&str]) -> Vec<u8> {
        let ids: Vec<u8> = devices.iter().flat_map(|id| field(2, id.as_bytes())).collect();
        let devices = [field(1, b"nvidia.com/gpu"), ids].concat();
        // A count of CPUs (3), as the kubelet sends it, is skipped.
        let container = [field(1, container.as_bytes()), field(2, &devices), vec![3 << 3, 4]].concat();
        field(1, &[field(1, name.as_bytes()), field(2, namespace.as_bytes()), field(3, &container)].concat())
    }

    #[test]
    fn devices_are_read_with_their_pods() {
        let message =
            [pod("ml", "train-0", "main", &["GPU-a", "GPU-b::3"]), pod("kube-system", "dns", "dns", &[])].concat();
        let pod = Pod { namespace: "ml".into(), name: "train-0".into(), container: "main".into() };
        let assigned = |device: &str| Assigned { device: device.into(), pod: pod.clone() };
        assert_eq!(parse(&message), Ok(vec![assigned("GPU-a"), assigned("GPU-b")]));
        assert_eq!(parse(&[]), Ok(Vec::new()));
        for cut in 1..message.len() {
            // A cut between two pods is a shorter list; no cut is a wrong one.
            assert!(parse(&message[..cut]).map_or(true, |found| found.len() <= 2));
        }
        for wrong in [&[0x0a, 5, 1][..], &[0x0b], &[0x0a, 2, 0x0a, 9], &[0xff; 11], &[0x0a, 3, 0x0a, 1, 0xff]] {
            assert_eq!(parse(wrong), Err(Malformed), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_message_makes_the_parser_panic(message in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&message);
        }
    }
}
