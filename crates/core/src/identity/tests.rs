//! Identities from the kernel's files, as real machines have them.

use std::collections::BTreeMap;

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const UID: &str = "8f3c0a52-1d2e-4b7f-9c11-2233445566aa";

fn environment(variables: &[(&str, &str)]) -> Environment {
    let text: String = variables.iter().map(|(name, value)| format!("{name}={value}\0")).collect();
    Environment::parse(text.as_bytes())
}

#[test]
fn slurm_jobs_are_found_in_paths_of_both_versions() {
    let table = [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0", Some(4711)),
        ("0::/system.slice/slurmstepd.scope/job_7/step_extern/slurm", Some(7)),
        ("0::/system.slice/gpu01_slurmstepd.scope/job_9/step_0/user/task_3", Some(9)),
        ("5:devices:/slurm/uid_1000/job_12/step_0/task_0\n0::/", Some(12)),
        ("11:memory:/slurm_gpu01/uid_0/job_13", Some(13)),
        ("1:name=systemd:/system.slice/slurmd.service\n4:freezer:/slurm/uid_7/job_14/step_batch", Some(14)),
        // Not a job: slurmd itself, an unfinished path, a number that is none.
        ("0::/system.slice/slurmd.service", None),
        ("0::/system.slice/slurmstepd.scope/system", None),
        ("0::/system.slice/slurmstepd.scope/job_0/step_0", None),
        ("0::/system.slice/slurmstepd.scope/job_x/step_0", None),
        ("5:devices:/slurm/job_12", None),
        // Groups that a user has made.
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7", None),
        ("4:freezer:/user.slice/slurm/uid_1000/job_7", None),
        ("0::/", None),
        ("", None),
        ("garbage", None),
    ];
    for (text, job) in table {
        assert_eq!(Groups::parse(text).slurm_job, job, "{text}");
    }
}

#[test]
fn pods_and_containers_are_found_in_paths_of_all_drivers() {
    let under = UID.replace('-', "_");
    let (docker, podman) = (Some(Runtime::Docker), Some(Runtime::Podman));
    let (containerd, crio) = (Some(Runtime::Containerd), Some(Runtime::CriO));
    let table = [
        (
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{ID}.scope"
            ),
            true,
            Some(containerd),
        ),
        (format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-{ID}.scope"), true, Some(crio)),
        (format!("12:memory:/kubepods/besteffort/pod{UID}/{ID}"), true, Some(None)),
        (
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{under}.slice/cri-containerd-{ID}.scope"
            ),
            true,
            Some(containerd),
        ),
        (
            format!("3:cpu:/system.slice/containerd.service/kubepods-burstable-pod{under}.slice:cri-containerd:{ID}"),
            true,
            Some(containerd),
        ),
        (format!("0::/kubepods.slice/kubepods-pod{under}.slice"), true, None),
        (format!("0::/system.slice/docker-{ID}.scope"), false, Some(docker)),
        (format!("7:devices:/docker/{ID}"), false, Some(docker)),
        (
            format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"),
            false,
            Some(podman),
        ),
        (format!("0::/machine.slice/libpod-{ID}.scope"), false, Some(podman)),
        (format!("0::/system.slice/nerdctl-{ID}.scope"), false, Some(containerd)),
        ("0::/system.slice/docker.service".to_owned(), false, None),
        ("0::/kubepods.slice/kubepods-burstable.slice".to_owned(), false, None),
        (format!("0::/system.slice/docker-{}.scope", &ID[1..]), false, None),
    ];
    for (text, is_pod, container) in table {
        let found = Groups::parse(&text);
        assert_eq!(found.pod_uid.as_deref(), is_pod.then_some(UID), "{text}");
        assert_eq!(found.container.as_ref().map(|c| c.runtime), container, "{text}");
        assert!(found.container.is_none_or(|c| c.id == ID), "{text}");
    }
    // Static pods have a hash in place of a UID.
    let of_hash = format!("0::/kubepods/pod{}/{ID}", &ID[..32]);
    assert_eq!(Groups::parse(&of_hash).pod_uid.as_deref(), Some(&ID[..32]));
}

#[test]
fn an_environment_is_read_once_and_only_where_it_names_a_job() {
    let found = Environment::parse(
        b"PATH=/bin\0SLURM_JOB_ID=7\0SLURM_JOB_ID=8\0SLURM_JOB_NAME=a=b\0SLURM_JOB_USER=\0\xff=1\0x",
    );
    assert_eq!((found.slurm_job(), found.get("SLURM_JOB_NAME")), (Some(7), Some("a=b")));
    assert_eq!((found.get("PATH"), found.get("SLURM_JOB_USER")), (None, None));
    for odd in ["0", "-1", "7x", "4294967296", ""] {
        assert_eq!(environment(&[("SLURM_JOB_ID", odd)]).slurm_job(), None, "{odd}");
    }
    assert_eq!(environment(&[("SLURM_JOB_NAME", &"x".repeat(257))]).get("SLURM_JOB_NAME"), None);
}

#[test]
fn a_step_daemon_is_known_by_its_title() {
    let table = [
        ("slurmstepd: [23.batch]\0", Some(23)),
        ("slurmstepd: [23.extern]", Some(23)),
        ("slurmstepd: [23.0]\0\0\0", Some(23)),
        ("slurmstepd: [23+1.0]", Some(23)),
        ("/usr/sbin/slurmstepd\0", None),
        ("slurmstepd: [x.0]", None),
        ("python\0slurmstepd: [23.0]\0", None),
        ("", None),
    ];
    for (title, job) in table {
        assert_eq!(slurmstepd_job(title.as_bytes()), job, "{title:?}");
    }
}

#[test]
fn what_the_kernel_states_comes_before_what_a_user_claims() {
    let claims = environment(&[("SLURM_JOB_ID", "9"), ("SLURM_JOB_ACCOUNT", "rich")]);
    let of = |cgroup, tree, mapped, environment: &Environment| {
        let evidence = Evidence {
            groups: Groups { slurm_job: cgroup, ..Groups::default() },
            slurmstepd_job: tree,
            mapped_job: mapped,
            environment: environment.clone(),
            ..Evidence::default()
        };
        Identity::from_evidence(evidence)
            .slurm
            .map(|job| (job.number, job.origin, job.claimed != Environment::default()))
    };
    assert_eq!(
        of(Some(7), Some(8), None, &claims),
        Some((7, Origin::Cgroup, false)),
        "another job's account is no claim"
    );
    assert_eq!(of(Some(9), None, None, &claims), Some((9, Origin::Cgroup, true)));
    assert_eq!(of(None, Some(8), Some(7), &claims), Some((8, Origin::ProcessTree, false)));
    assert_eq!(of(None, None, Some(7), &claims), Some((7, Origin::JobMapping, false)));
    assert_eq!(of(None, None, None, &claims), Some((9, Origin::Environment, true)));
    assert_eq!(of(None, None, None, &Environment::default()), None);
}

#[test]
fn a_user_is_the_one_who_logged_in() {
    let uid = |login_uid, uid| Identity::from_evidence(Evidence { login_uid, uid, ..Evidence::default() }).uid;
    assert_eq!(uid(Some(1000), Some(0)), Some(1000), "under sudo");
    assert_eq!(uid(Some(u32::MAX), Some(1001)), Some(1001), "a service");
    assert_eq!(uid(Some(0), Some(1001)), Some(1001), "root's login, another user's process");
    assert_eq!(uid(None, None), None);
    assert_eq!(real_uid("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t1\t1\t1\t1\n"), Some(1000));
    assert_eq!(real_uid("Name:\tUid: 7\n"), None);
}

#[test]
fn keys_put_processes_of_one_job_together() {
    let pod = Identity { pod_uid: Some(UID.into()), uid: Some(0), ..Identity::default() };
    let container = Container { runtime: None, id: ID.into() };
    let slurm = SlurmJob { number: 7, origin: Origin::Cgroup, claimed: Environment::default() };
    let table = [
        (Identity { slurm: Some(slurm), ..pod.clone() }, Some(("slurm", "slurm_job_id", "7"))),
        (Identity { container: Some(container.clone()), ..pod }, Some(("kubernetes", "pod_uid", UID))),
        (Identity { container: Some(container), ..Identity::default() }, Some(("container", "container_id", ID))),
        (Identity { uid: Some(1000), ..Identity::default() }, Some(("user", "uid", "1000"))),
        (Identity::default(), None),
    ];
    for (identity, expected) in table {
        let key = Key::of(&identity).map(|(key, _)| key);
        let shown = key.as_ref().map(|key| (key.kind.as_str(), key.kind.tag(), key.id.as_str()));
        assert_eq!(shown, expected);
        if let Some(key) = key {
            assert_eq!(Key::of_tags(&key.tags()), Some(key), "labels keep the key");
        }
    }
    assert_eq!(Key::of_tags(&BTreeMap::from([("found".into(), "elsewhere".into())])), None);
}

#[test]
fn a_claimed_slurm_job_comes_after_what_the_kernel_and_the_kubelet_state() {
    let claimed = || Some(SlurmJob { number: 9, origin: Origin::Environment, claimed: Environment::default() });
    let pod = Some(Pod { namespace: "ml".into(), name: "train-0".into(), container: "main".into() });
    let key = |identity: Identity| Key::of(&identity).map(|(key, origin)| (key.kind, key.id, origin));
    let table = [
        (
            Identity { slurm: claimed(), pod_uid: Some(UID.into()), ..Identity::default() },
            (Kind::Kubernetes, UID, Origin::Cgroup),
        ),
        (Identity { slurm: claimed(), pod, ..Identity::default() }, (Kind::Kubernetes, "ml/train-0", Origin::Kubelet)),
        (Identity { slurm: claimed(), uid: Some(7), ..Identity::default() }, (Kind::Slurm, "9", Origin::Environment)),
    ];
    for (identity, (kind, id, origin)) in table {
        assert_eq!(key(identity), Some((kind, id.to_owned(), origin)));
    }
}

#[test]
fn labels_say_where_they_come_from() {
    let ada = User { uid: 1000, name: Some("ada".into()) };
    let variables = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", "resnet"), ("SLURM_JOB_ACCOUNT", "vision")];
    let of = |identity: &Identity, user: Option<&User>| {
        let found = labels(identity, user).expect("known");
        let tags: Vec<String> = found.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        (found.name.to_string(), tags.join(" "))
    };
    let slurm = |origin| Identity {
        slurm: Some(SlurmJob { number: 7, origin, claimed: environment(&variables) }),
        ..Identity::default()
    };
    let (name, tags) = of(&slurm(Origin::Cgroup), Some(&ada));
    assert_eq!(name, "resnet");
    assert_eq!(tags, "account=vision claimed=account,name found=slurm identity_from=cgroup slurm_job_id=7 user=ada");
    let (_, tags) = of(&slurm(Origin::Environment), None);
    assert!(tags.contains("claimed=account,name,slurm_job_id") && tags.contains("identity_from=environment"), "{tags}");
    let pod = Pod { namespace: "ml".into(), name: "train-0".into(), container: "main".into() };
    let container = Container { runtime: Some(Runtime::Containerd), id: ID.into() };
    let pod = Identity {
        pod_uid: Some(UID.into()),
        pod: Some(pod),
        container: Some(container.clone()),
        ..Identity::default()
    };
    let (name, tags) = of(&pod, None);
    assert_eq!(name, "ml/train-0");
    assert_eq!(
        tags,
        format!(
            "container=main container_id={ID} found=kubernetes identity_from=cgroup namespace=ml pod=train-0 pod_uid={UID}"
        )
    );
    let docker = Identity { container: Some(container), uid: Some(1000), ..Identity::default() };
    assert_eq!(of(&docker, Some(&ada)).0, "containerd-0123456789ab");
    let alone = Identity { uid: Some(1000), ..Identity::default() };
    assert_eq!(
        of(&alone, Some(&ada)),
        ("user ada".to_owned(), "found=user identity_from=uid uid=1000 user=ada".to_owned())
    );
    assert_eq!(of(&alone, None).0, "user 1000");
    assert_eq!(labels(&Identity::default(), None), None);
    // A name of nothing visible.
    let odd = environment(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", "\u{200b}\u{200b}")]);
    let odd =
        Identity { slurm: Some(SlurmJob { number: 7, origin: Origin::Cgroup, claimed: odd }), ..Identity::default() };
    assert!(labels(&odd, None).is_some());
}
