//! How clients reach a volume.
