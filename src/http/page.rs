//! The web page at `/`: one document that contains its style, script and charts. The page only reads the daemon's API
//! and changes nothing. The sources of the page are in `page/`.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const STYLE: &str = concat!(include_str!("page/uplot/uPlot.min.css"), include_str!("page/page.css"));

/// The chart library uPlot, then the page's own files, which share one scope.
const SCRIPT: &str = concat!(
    include_str!("page/uplot/uPlot.iife.min.js"),
    "\n(() => {\n\"use strict\";\n",
    include_str!("page/dom.js"),
    include_str!("page/format.js"),
    include_str!("page/live.js"),
    include_str!("page/chart.js"),
    include_str!("page/timeline.js"),
    include_str!("page/jobs.js"),
    include_str!("page/gpus.js"),
    include_str!("page/recurring.js"),
    include_str!("page/when.js"),
    include_str!("page/overview.js"),
    include_str!("page/main.js"),
    "})();\n",
);

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/page.html")
        .replace("{licence}", include_str!("page/uplot/LICENSE").trim())
        .replace("{style}", STYLE)
        .replace("{script}", SCRIPT)
});

/// The content security policy: allows only the document's own style and script, and requests to its own server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Returns the web page with live figures.
#[utoipa::path(
    get, path = "/", operation_id = "get_page", tag = "status",
    responses((status = OK, body = String, content_type = "text/html", description = "One document"))
)]
pub(super) async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, DOCUMENT.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parts of the document between these tags.
    fn between<'a>(open: &str, close: &str) -> Vec<&'a str> {
        DOCUMENT.split(open).skip(1).map(|rest| rest.split_once(close).expect(close).0).collect()
    }

    #[test]
    fn the_policy_allows_only_the_documents_style_and_script() {
        for (open, close, directive) in [("<style>", "</style>", "style-src"), ("<script>", "</script>", "script-src")]
        {
            let [part] = between(open, close)[..] else { panic!("not one {open}") };
            let hash = STANDARD.encode(Sha256::digest(part.as_bytes()));
            assert!(POLICY.contains(&format!("{directive} 'sha256-{hash}';")), "{directive}: {}", *POLICY);
        }
        assert!(!POLICY.contains("unsafe") && !POLICY.contains('*') && !POLICY.contains("http"), "{}", *POLICY);
        for hole in ["{style}", "{script}", "{licence}", " style=\"", "javascript:", " onclick", " onload", "innerHTML"]
        {
            let own = DOCUMENT.replace(include_str!("page/uplot/uPlot.iife.min.js"), "");
            assert!(!own.contains(hole), "{hole}");
        }
    }

    #[test]
    fn the_document_has_no_external_references() {
        // Allowed: the name of the XML vocabulary of SVG, and uPlot's origin in the header of its script.
        let names = ["http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"];
        let text = names.iter().fold(DOCUMENT.clone(), |text, name| text.replace(name, ""));
        for scheme in ["http://", "https://", "ws://", "wss://", "url(", "@import", " src=", "sendBeacon", "import("] {
            assert!(!text.contains(scheme), "{scheme}: {:?}", text.split(scheme).nth(1).map(|t| &t[..t.len().min(60)]));
        }
        for link in between("<link ", ">") {
            assert!(link.contains("href=\"data:image/svg+xml,"), "{link}");
        }
    }

    #[test]
    fn the_document_has_uplots_licence() {
        assert!(DOCUMENT.contains("Copyright (c) 2022 Leon Sorokin") && DOCUMENT.contains("THE SOFTWARE IS PROVIDED"));
        assert!(SCRIPT.contains("uPlot (v1.6.32)"));
    }

    #[test]
    fn the_script_only_reads() {
        // The page's own script sends all requests from one place, and they only read.
        let own = SCRIPT.replace(include_str!("page/uplot/uPlot.iife.min.js"), "");
        assert_eq!(own.matches("fetch(").count(), 1);
        for method in ["POST", "PUT", "DELETE", "PATCH", "XMLHttpRequest", "WebSocket"] {
            assert!(!own.contains(&format!("\"{method}\"")) && !own.contains(&format!("new {method}")), "{method}");
        }
    }
}
