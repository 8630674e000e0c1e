//! The overlay's configuration is one that Envoy takes (O5).

use std::{path::Path, process::Command};

use revgate_tests::{envoy, require};

#[test]
fn the_overlays_file_is_one_that_envoy_takes() {
    let Some(program) = envoy::program() else {
        return require::skip("envoy", "no Envoy: .ci/setup envoy installs it");
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/overlays/envoy/envoy.yaml");
    let output =
        Command::new(program).args(["--mode", "validate", "--config-path"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
