"""The keys of `top`, decoded from the terminal's input, which may arrive in pieces."""

from __future__ import annotations

_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
}
_KEYS = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace"}
_ESC = b"\x1b"
_OPENS = (b"[", b"O")


class KeyReader:
    """Reads keys, keeping the possible beginning of a key until the rest arrives."""

    def __init__(self) -> None:
        self._kept = b""

    @property
    def waits(self) -> bool:
        """Tell whether a key is undecided: an escape may begin a longer sequence."""
        return self._kept == _ESC

    def read(self, data: bytes) -> list[str]:
        """Return the complete keys."""
        data, self._kept = self._kept + data, b""
        keys = []
        while data:
            if data.startswith(_ESC):
                key, size = _sequence(data)
            else:
                key, size = _letter(data)
            if not size:
                self._kept = data
                break
            data = data[size:]
            keys += [key] if key else []
        return keys

    def rest(self) -> list[str]:
        """Return the kept input if it is a key, such as a lone escape, since nothing followed."""
        if not self.waits:
            return []
        self._kept = b""
        return ["esc"]


def _sequence(data: bytes) -> tuple[str, int]:
    """Return the key of an escape sequence, '' if unknown, and the sequence's length or 0."""
    if len(data) == 1:
        return "", 0
    if data[1:2] not in _OPENS:
        return "esc", 1
    known = next((sequence for sequence in _SEQUENCES if data.startswith(sequence)), None)
    if known is not None:
        return _SEQUENCES[known], len(known)
    # An unknown sequence ends at its first letter or tilde.
    end = next((at for at in range(2, len(data)) if 0x40 <= data[at] < 0x7F), None)
    return "", 0 if end is None else end + 1


def _letter(data: bytes) -> tuple[str, int]:
    """Return the first letter of the data, '' if not UTF-8, and its length, 0 if incomplete."""
    first = data[0]
    size = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if len(data) < size and all(0x80 <= byte < 0xC0 for byte in data[1:]):
        return "", 0
    try:
        text = data[:size].decode()
    except UnicodeDecodeError:
        return "", 1
    return _KEYS.get(text, text), size
