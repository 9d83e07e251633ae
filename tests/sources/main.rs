//! The sources and documents of the project themselves.

mod circles;
mod documents;
mod tidy;
