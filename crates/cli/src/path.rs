//! Paths as the daemon needs them: absolute, because it works in another directory.

use forebay_api::ApiError;
use std::path::{Path, PathBuf};

/// Absolute path of a device that must exist.
pub fn device(path: &Path) -> Result<String, ApiError> {
    let absolute = std::path::absolute(path)
        .map_err(|error| ApiError::usage(format!("the path {path:?}: {error}")))?;
    if !absolute.exists() {
        let shown = absolute.display();
        return Err(ApiError::failed(format!("{shown}: no such file or device"))
            .action(format!("make a file to try it with: truncate -s 10G {shown}")));
    }
    text(absolute)
}

/// URI of an origin with absolute paths in it.
pub fn origin(origin: &str) -> Result<String, ApiError> {
    let Some((scheme, rest)) = scheme(origin) else {
        let absolute = std::path::absolute(origin)
            .map_err(|error| ApiError::usage(format!("the origin {origin:?}: {error}")))?;
        if !absolute.exists() {
            let shown = absolute.display();
            return Err(ApiError::failed(format!("the origin {shown}: no such file or device"))
                .action("give the path of the disk, or of the disk image, that is to be cached"));
        }
        return text(absolute);
    };
    match scheme {
        "spindle" => {
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            let absolute = std::path::absolute(path)
                .map_err(|error| ApiError::usage(format!("the origin {origin:?}: {error}")))?;
            let mark = if query.is_empty() { "" } else { "?" };
            Ok(format!("spindle:{}{mark}{query}", text(absolute)?))
        }
        _ => Ok(origin.to_string()),
    }
}

/// Splits `scheme:rest`. A single letter or a slash before the colon is no scheme.
fn scheme(origin: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = origin.split_once(':')?;
    let word = scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '+');
    (word && scheme.len() > 1 && !Path::new(origin).exists()).then_some((scheme, rest))
}

fn text(path: PathBuf) -> Result<String, ApiError> {
    path.into_os_string()
        .into_string()
        .map_err(|path| ApiError::usage(format!("the path {path:?} is not UTF-8: rename it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_uris_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let spindle = origin("spindle:disk.img?preset=nas-5400").unwrap();
        let wanted = format!("spindle:{}?preset=nas-5400", here.join("disk.img").display());
        assert_eq!(spindle, wanted);
        assert_eq!(origin("spindle:/a").unwrap(), "spindle:/a");
        assert_eq!(origin("ram:40G").unwrap(), "ram:40G");
        assert_eq!(origin("Cargo.toml").unwrap(), here.join("Cargo.toml").display().to_string());
        let error = origin("none.img").unwrap_err();
        assert!(error.message.ends_with("none.img: no such file or device"), "{error}");
        assert!(device(Path::new("ssd.img")).unwrap_err().actions[0].contains("truncate"));
    }
}
