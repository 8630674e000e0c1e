//! The embedded source: Pods from a YAML or JSON file, re-read on change.
