"""A page as a browser takes it apart."""

from html.parser import HTMLParser

LOADING = {"src", "srcset", "href", "data", "action", "poster", "background", "formaction"}


class PageReader(HTMLParser):
    """What a browser sees: tags, attributes that load or run, scripts, styles, texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads, self.handlers = [], [], []
        self.scripts, self.data, self.styles, self.texts = [], [], [], []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [(tag, name, value) for name, value in attrs if name in LOADING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.inside = tag
        if tag == "script":
            self.inside = "data" if dict(attrs).get("type") == "application/json" else "script"
        if tag == "meta" and dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]
        {"script": self.scripts, "data": self.data, "style": self.styles}.get(
            self.inside, []
        ).append("")

    def handle_endtag(self, _tag):
        self.inside = ""

    def handle_data(self, text):
        kept = {"script": self.scripts, "data": self.data, "style": self.styles}.get(self.inside)
        if kept is None:
            self.texts.append(text)
        else:
            kept[-1] += text
