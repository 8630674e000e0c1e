//! What people and machines see: metrics, the admin server, status.
