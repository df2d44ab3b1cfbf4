"""stub"""


class Resolved: ...


def load() -> None: ...
