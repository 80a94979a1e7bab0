use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::http::HeaderValue;

use super::needs::TABLE;
use super::*;
use crate::http::routes;

const KEY: [u8; 40] = [7; 40];
const UNIX: Transport = Transport::Unix;
const LOOPBACK: Transport = Transport::Loopback;
const REMOTE: Transport = Transport::Remote { is_encrypted: false };
const TLS: Transport = Transport::Remote { is_encrypted: true };

fn key(path: &Path, bytes: &[u8]) -> PathBuf {
    std::fs::write(path, bytes).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("changed");
    path.to_owned()
}

fn claims(scopes: &[Scope]) -> Claims {
    Claims { sub: "alice".into(), scopes: scopes.to_vec(), exp: None }
}

#[test]
fn every_route_has_one_row() {
    let rows: BTreeSet<(&str, &str)> = TABLE.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(rows.len(), TABLE.len(), "a row is there twice");
    let all = routes::all();
    let missing: Vec<_> = all.iter().filter(|(m, p)| !rows.contains(&(m.as_str(), p.as_str()))).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    let routes: BTreeSet<(&str, &str)> = all.iter().map(|(m, p)| (m.as_str(), p.as_str())).collect();
    let gone: Vec<_> = rows.difference(&routes).collect();
    assert!(gone.is_empty(), "rows without a route: {gone:?}");
    // Whatever changes something needs more than reading, except queries with a body.
    for (method, path, need) in TABLE.iter().filter(|(method, ..)| ["PUT", "POST", "DELETE", "PATCH"].contains(method))
    {
        assert!(*need >= Need::Jobs || path.ends_with("/batch"), "{method} {path}");
    }
}

#[test]
fn unlisted_methods_and_routes_need_the_most() {
    let of = |method: &str, route| need_of(&method.parse().expect("a method"), route);
    assert_eq!(of("HEAD", "/v1/gpus"), Need::Read);
    assert_eq!(of("POST", "/v1/gpus/{id}/power-limit"), Need::Control);
    assert_eq!(of("PUT", "/v1/jobs/{id}"), Need::Jobs);
    assert_eq!(of("HEAD", "/jobs/batch_size"), Need::Jobs);
    assert_eq!(of("POST", "/gpu/{*rest}"), Need::Zeus);
    assert_eq!(of("GET", "/v1/secret"), Need::Admin);
}

#[test]
fn rights_follow_from_connection_and_token() {
    let everything = Rights { read: true, jobs: true, control: true, admin: false };
    let own_jobs = Rights { control: false, ..everything };
    let reads = Rights { jobs: false, ..own_jobs };
    let nothing = Rights::default();
    let us = crate::files::user();
    let table = [
        (UNIX, Some(4711), false, everything),
        (UNIX, None, false, everything),
        (UNIX, Some(0), false, Rights { admin: true, ..everything }),
        (UNIX, Some(us), false, Rights { admin: true, ..everything }),
        (LOOPBACK, Some(4711), false, own_jobs),
        (LOOPBACK, Some(0), false, own_jobs),
        (LOOPBACK, None, false, reads),
        (LOOPBACK, Some(4711), true, everything),
        (LOOPBACK, None, true, everything),
        (REMOTE, None, true, nothing),
        (TLS, Some(0), true, nothing),
    ];
    for (transport, user, control, rights) in table {
        assert_eq!(Rights::of(transport, user, control), rights, "{transport:?} {user:?} {control}");
    }
    let admin = Rights { admin: true, ..everything };
    let table: [(Transport, &[Scope], Rights); 13] = [
        (TLS, &[], nothing),
        (TLS, &[Scope::CpuRead], nothing),
        (TLS, &[Scope::GpuRead], reads),
        (TLS, &[Scope::Jobs], own_jobs),
        (TLS, &[Scope::GpuControl], everything),
        (TLS, &[Scope::Admin], admin),
        (REMOTE, &[Scope::GpuControl, Scope::Jobs], reads),
        (REMOTE, &[Scope::Admin], reads),
        (LOOPBACK, &[], reads),
        (LOOPBACK, &[Scope::GpuRead, Scope::CpuRead], reads),
        (LOOPBACK, &[Scope::Jobs], own_jobs),
        (LOOPBACK, &[Scope::GpuControl], everything),
        (UNIX, &[Scope::GpuRead], everything),
    ];
    for (transport, scopes, rights) in table {
        let token = Token::Valid(claims(scopes));
        assert_eq!(Rights::of(transport, None, false).with(&token, transport), rights, "{transport:?} {scopes:?}");
    }
    let invalid = Token::Invalid(TokenError::Expired);
    assert_eq!(Rights::of(LOOPBACK, None, false).with(&invalid, LOOPBACK), reads);
}

#[test]
fn the_header_begins_with_the_scheme() {
    let table: [(&[u8], Option<&str>); 6] = [
        (b"Bearer abc", Some("abc")),
        (b"Bearer  abc ", Some(" abc ")),
        (b"Bearer ", Some("")),
        (b"Basic abc", None),
        (b"Bearer", None),
        (b"Bearer \xff", None),
    ];
    for (value, token) in table {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_bytes(value).expect("a value"));
        assert_eq!([true, false].map(|is_exact| bearer(&headers, is_exact)), [token; 2], "{value:?}");
    }
    assert_eq!(bearer(&HeaderMap::new(), false), None);
    for value in ["bearer abc", "BEARER abc"] {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
        assert_eq!((bearer(&headers, false), bearer(&headers, true)), (Some("abc"), None), "{value}");
    }
}

/// Signs a token with any header and claims.
fn sign(header: &str, claims: &str, secret: &[u8]) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let key = jsonwebtoken::EncodingKey::from_secret(secret);
    let signature = jsonwebtoken::crypto::sign(text.as_bytes(), &key, jsonwebtoken::Algorithm::HS256).expect("signed");
    format!("{text}.{signature}")
}

#[test]
fn tokens_are_read_as_zeus_does() {
    const HS256: &str = r#"{"typ":"JWT","alg":"HS256"}"#;
    let dir = tempfile::tempdir().expect("a directory");
    let keys = TokenKeys::load(&[key(&dir.path().join("key"), &KEY)]).expect("a key");
    let good = r#"{"sub":"alice","scopes":["gpu-read"]}"#;
    let invalid = |why: &str| Err(TokenError::Invalid(why.into()));
    let table = [
        (sign(HS256, good, &KEY), Ok(claims(&[Scope::GpuRead]))),
        (sign(HS256, r#"{"sub":"alice","scopes":[],"nbf":9999999999,"iss":"x","more":1}"#, &KEY), Ok(claims(&[]))),
        (
            sign(HS256, r#"{"sub":"alice","scopes":[],"exp":9999999999}"#, &KEY),
            Ok(Claims { exp: Some(9_999_999_999), ..claims(&[]) }),
        ),
        (sign(HS256, r#"{"sub":"alice","scopes":[],"exp":1}"#, &KEY), Err(TokenError::Expired)),
        (
            sign(HS256, r#"{"scopes":["gpu-read"],"exp":9999999999}"#, &KEY),
            invalid("JSON error: missing field `sub` at line 1 column 40"),
        ),
        (sign(HS256, r#"{"sub":"alice"}"#, &KEY), invalid("JSON error: missing field `scopes` at line 1 column 15")),
        (sign(HS256, r#"{"sub":"alice","scopes":[],"aud":"x"}"#, &KEY), invalid("InvalidAudience")),
        (sign(HS256, good, &[8; 40]), invalid("InvalidSignature")),
        (sign(r#"{"typ":"JWT","alg":"HS512"}"#, good, &KEY), invalid("InvalidAlgorithm")),
        ("".into(), invalid("InvalidToken")),
        ("a.b".into(), invalid("InvalidToken")),
    ];
    for (token, expected) in table {
        assert_eq!(keys.verify(&token), expected, "{token}");
    }
    let refused = [
        sign(r#"{"typ":"JWT","alg":"none"}"#, good, &KEY),
        sign(HS256, r#"{"sub":"alice","scopes":["gpu-write"]}"#, &KEY),
        sign(HS256, r#"{"sub":"alice","scopes":[],"exp":9999999999.5}"#, &KEY),
        sign(HS256, r#"{"sub":"alice","scopes":[],"exp":-1}"#, &KEY),
        sign(HS256, r#"{"sub":1,"scopes":[]}"#, &KEY),
    ];
    assert!(keys.verify(&format!(" {}", sign(HS256, good, &KEY))).is_err(), "the remainder of the header is the token");
    for token in refused {
        let error = keys.verify(&token);
        assert!(matches!(&error, Err(TokenError::Invalid(why)) if why.starts_with("JSON error: ")), "{error:?}");
    }
}

#[test]
fn the_first_key_signs_and_all_verify() {
    let dir = tempfile::tempdir().expect("a directory");
    let (old, new) = (key(&dir.path().join("old"), &KEY), key(&dir.path().join("new"), &[9; 32]));
    let before = TokenKeys::load(std::slice::from_ref(&old)).expect("keys");
    let token = before.issue(&claims(&[Scope::Jobs])).expect("issued");
    let both = TokenKeys::load(&[new.clone(), old.clone()]).expect("keys");
    assert_eq!(both.verify(&token), Ok(claims(&[Scope::Jobs])));
    assert_eq!(both.examine(&token).expect("valid").key, old);
    let newer = both.issue(&claims(&[])).expect("issued");
    assert_eq!(both.examine(&newer).expect("valid").key, new);
    assert!(before.verify(&newer).is_err());
    std::fs::remove_file(&old).expect("removed");
    assert_eq!(both.verify(&token), Err(TokenError::Invalid("InvalidSignature".into())), "its key is gone");
    assert!(both.verify(&newer).is_ok());
    let id = both.examine(&newer).expect("valid").id.expect("an id");
    assert_ne!(both.examine(&both.issue(&claims(&[])).expect("issued")).expect("valid").id.as_ref(), Some(&id));
    both.revoke(&id).expect("listed");
    assert_eq!(both.verify(&newer), Err(TokenError::Invalid("it is revoked".into())));
    let revoked = both.examine(&newer).expect("signed");
    assert_eq!((revoked.id, revoked.refused), (Some(id), Some(TokenError::Invalid("it is revoked".into()))));
    let expired = Claims { exp: Some(1), ..claims(&[]) };
    let examined = both.examine(&both.issue(&expired).expect("issued")).expect("signed");
    assert_eq!((examined.refused, examined.claims), (Some(TokenError::Expired), expired));
}

#[test]
fn a_deleted_key_is_an_error_only_if_it_is_the_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = [key(&dir.path().join("new"), &[9; 32]), key(&dir.path().join("old"), &KEY)];
    let of_old = TokenKeys::load(&paths[1..]).expect("a key").issue(&claims(&[])).expect("issued");
    assert!(TokenKeys::load(&paths).expect("keys").verify(&of_old).is_ok());
    std::fs::remove_file(&paths[1]).expect("removed");
    let left = TokenKeys::load(&paths).expect("the first one is there");
    let token = left.issue(&claims(&[Scope::Jobs])).expect("issued");
    assert_eq!(left.verify(&token), Ok(claims(&[Scope::Jobs])));
    assert_eq!(left.verify(&of_old), Err(TokenError::Invalid("InvalidSignature".into())));
    left.revoke(&left.examine(&token).expect("signed").id.expect("an id")).expect("listed");
    assert_eq!(left.verify(&token), Err(TokenError::Invalid("it is revoked".into())));
    key(&paths[1], &KEY);
    assert!(left.verify(&of_old).is_ok(), "its file is back");
    // A file that is there must be a key.
    std::fs::write(&paths[1], "short").expect("written");
    assert!(TokenKeys::load(&paths).is_err());
    std::fs::remove_file(&paths[0]).expect("removed");
    let missing = TokenKeys::load(&paths).expect_err("no key signs").to_string();
    assert!(missing.contains("new: cannot read it"), "{missing}");
}
