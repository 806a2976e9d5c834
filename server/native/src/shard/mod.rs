//! The shard kernel: what a worker's event loop does for lookups. Python keeps clients, limits and all other commands.
mod kernel;
mod replies;
mod sys;
mod turn;

pub use kernel::register;
