//! A GPU as people name it.

/// A GPU as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRef {
    /// By its index at this boot.
    Index(u32),
    /// By its UUID or its PCI bus id.
    Id(String),
}

impl GpuRef {
    /// Digits are an index, everything else an id.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Id(text.to_owned()), Self::Index)
    }
}

impl std::fmt::Display for GpuRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Id(id) => f.write_str(id),
        }
    }
}
