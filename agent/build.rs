//! Builds the kernel object and hands it to `src/kernel/object.rs`, and the messages of `proto/` for `src/extproc.rs`.
//!
//! The object needs another compiler than the agent: a nightly of rustup with `rust-src` (for `core` on the BPF target), or
//! Debian's `rustc-web`, which brings that `core` ready-made; and `bpf-linker`. Where they are missing the agent is
//! still built, without the object, and says so once here and again when it starts. `REVGATE_REQUIRE` with `bpf` in
//! its list makes that a failure. Code that does not compile is a failure always.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Chooses another rustup toolchain than `nightly`, to pin it by date.
const TOOLCHAIN: &str = "REVGATE_BPF_TOOLCHAIN";
/// The privileged parts that must not be left out, a comma list.
const REQUIRE: &str = "REVGATE_REQUIRE";

/// The objects, and the features that each is built with: what runs, and what writes a line for every decision.
const OBJECTS: [(&str, &str); 2] = [("revgate.bpf.o", ""), ("revgate-trace.bpf.o", "trace")];

fn main() -> ExitCode {
    for path in
        ["proto", "../ebpf", "../common/src", "../common/Cargo.toml", "../Cargo.toml", "../Cargo.lock"]
    {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in [TOOLCHAIN, REQUIRE, "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    match messages().and_then(|()| run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The protocols that `proto/` holds.
const PROTOCOLS: [&str; 2] =
    ["envoy/service/ext_proc/v3/external_processor.proto", "grpc/health/v1/health.proto"];

/// Compiles them by `protox`, in Rust: no `protoc` has to be there. Bodies are `Bytes`, slices of what was received;
/// maps, which hold a few entries at most, are sorted, not hashed.
fn messages() -> Result<(), String> {
    let files = protox::compile(PROTOCOLS, ["proto"]).map_err(|e| format!("proto: {e}"))?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).btree_map(["."]).include_file("protocols.rs");
    config.compile_fds(files).map_err(|e| format!("proto: {e}"))
}

fn run() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    match Compiler::find() {
        Ok(compiler) => OBJECTS.into_iter().try_for_each(|(object, features)| {
            let built = compiler.build(&out, features)?;
            let copied = fs::copy(&built, out.join(object));
            copied.map(drop).map_err(|e| format!("copy {}: {e}", built.display()))
        }),
        Err(missing) => {
            let required =
                env::var(REQUIRE).is_ok_and(|list| list.split(',').any(|part| part.trim() == "bpf"));
            if required {
                return Err(format!("{REQUIRE} asks for bpf, but {missing}"));
            }
            println!("cargo::warning=built without kernel programs: {missing}");
            watch_for_tools();
            OBJECTS.into_iter().try_for_each(|(object, _)| {
                fs::write(out.join(object), []).map_err(|e| format!("write {object}: {e}"))
            })
        }
    }
}

/// A compiler that can build for the BPF target.
enum Compiler {
    /// A toolchain of rustup that builds `core` itself.
    Rustup(OsString),
    /// Debian's, in `/usr/bin`, with a ready-made `core`.
    Debian,
}

impl Compiler {
    /// Finds one, or says what is missing and how to get it.
    fn find() -> Result<Self, String> {
        if !on_path("bpf-linker") {
            return Err(
                "bpf-linker is not in PATH; `make setup` installs it (cargo install bpf-linker)".into()
            );
        }
        let toolchain = env::var_os(TOOLCHAIN).unwrap_or_else(|| "nightly".into());
        let nightly = sysroot(Command::new("rustup").arg("run").arg(&toolchain).arg("rustc"));
        if nightly.is_some_and(|root| root.join("lib/rustlib/src/rust/library/core").is_dir()) {
            return Ok(Self::Rustup(toolchain));
        }
        let target = target()?;
        let debian = sysroot(&mut Command::new("/usr/bin/rustc"));
        if debian.is_some_and(|root| root.join("lib/rustlib").join(target).join("lib").is_dir()) {
            return Ok(Self::Debian);
        }
        Err(format!(
            "no compiler for {target}; `make setup` installs one (rustup toolchain install {} -c rust-src, or \
             apt-get install rustc-web cargo-web libstd-rust-web-dev-bpf)",
            toolchain.display()
        ))
    }

    /// Builds the object in a target directory of its own, and returns its path.
    ///
    /// All profiles and lints of the agent share that directory: `core` is compiled once.
    fn build(&self, out: &Path, features: &str) -> Result<PathBuf, String> {
        // OUT_DIR is <target>/<profile>/build/<package>/out.
        let shared = out.ancestors().nth(4).unwrap_or(out);
        let (target, target_dir) = (target()?, shared.join("ebpf"));
        let mut cargo = match self {
            Self::Rustup(toolchain) => {
                let mut cargo = clean("rustup");
                cargo.arg("run").arg(toolchain).arg("cargo").args(["build", "-Zbuild-std=core"]);
                cargo
            }
            Self::Debian => {
                let mut cargo = clean("/usr/bin/cargo");
                // For this one call: the object needs BPF inline assembly, which no stable compiler allows.
                cargo.arg("build").env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        };
        let flags = [
            format!("--cfg=bpf_target_arch=\"{}\"", variable("CARGO_CFG_TARGET_ARCH")?),
            // Paths of this machine stay out of the object.
            format!("--remap-path-prefix={}=.", workspace()?.display()),
            "-Cdebuginfo=2".into(),
            "-Clink-arg=--btf".into(),
        ];
        cargo
            .args(["--package=revgate-ebpf", "--features", features, "--profile=bpf", "--locked"])
            .args(["--target", target])
            .arg("--target-dir")
            .arg(&target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .current_dir(workspace()?);
        let output = cargo.output().map_err(|e| format!("{cargo:?}: {e}"))?;
        if !output.status.success() {
            return Err(format!("{cargo:?} failed:\n{}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(target_dir.join(target).join("bpf").join("revgate-ebpf"))
    }
}

/// A command without what the outer cargo tells its own compiler: wrappers (clippy), flags, another toolchain.
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_the_call = text.starts_with("CARGO_") && !matches!(text, "CARGO_HOME" | "CARGO_MAKEFLAGS");
        let of_the_compiler =
            text.starts_with("RUSTC") || matches!(text, "RUSTFLAGS" | "RUSTUP_TOOLCHAIN" | "CARGO");
        if (of_the_call && !text.starts_with("CARGO_NET_") && !text.starts_with("CARGO_HTTP_"))
            || of_the_compiler
        {
            command.env_remove(name);
        }
    }
    command
}

/// The BPF target with the byte order of the machine that the agent is for.
fn target() -> Result<&'static str, String> {
    let big = variable("CARGO_CFG_TARGET_ENDIAN")? == "big";
    Ok(if big { "bpfeb-unknown-none" } else { "bpfel-unknown-none" })
}

fn workspace() -> Result<PathBuf, String> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    manifest.parent().map(Path::to_path_buf).ok_or_else(|| "the agent is not in a workspace".into())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

/// The sysroot of a compiler, when it runs at all.
fn sysroot(rustc: &mut Command) -> Option<PathBuf> {
    let output = rustc.args(["--print", "sysroot"]).env_remove("RUSTUP_TOOLCHAIN").output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

fn on_path(program: impl AsRef<OsStr>) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program.as_ref()).is_file())
}

/// Runs this script again when tools are installed, and only then.
fn watch_for_tools() {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let under =
        |name: &str, default: &str| env::var_os(name).map_or_else(|| home.join(default), PathBuf::from);
    for path in [
        under("CARGO_HOME", ".cargo").join("bin"),
        under("RUSTUP_HOME", ".rustup").join("update-hashes"),
        PathBuf::from("/var/lib/dpkg/status"),
    ] {
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}
