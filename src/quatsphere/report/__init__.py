"""Figures, the report page and the 3-D view of runs and studies."""

from quatsphere.errors import ConfigError


def require_report() -> None:
    """Raise ConfigError if the packages of the extra `report` are missing."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("pictures and pages need matplotlib and jinja2; pip install 'quatsphere[report]'") from error
