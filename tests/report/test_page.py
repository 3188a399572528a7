# SPDX-License-Identifier: Apache-2.0
"""Pages of `ckv report` in a headless Chromium: what a person sees, and reaches with a keyboard. ci/report_screenshot runs
this; screenshots stay in the folder that SCREENSHOTS names."""
import os
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import traces  # noqa: E402
from browser import Browser, Picture, find  # noqa: E402

CKV, FOLDER = os.environ["CKV"], os.path.abspath(os.environ.get("SCREENSHOTS", "screenshots"))
CANVASES = ("timeline", "keys", "heat", "shards", "pages")
KINDS = ("pinned", "history", "stale", "staged", "private", "guard", "empty")


def make(name, write, ranks=2):
    """A page of a trace that is wrong somewhere, or not: its address."""
    trace, page = os.path.join(FOLDER, f"{name}.safetensors"), os.path.join(FOLDER, f"{name}.html")
    write(trace)
    done = subprocess.run([CKV, "report", trace, "-o", page, "--ranks", str(ranks)], capture_output=True, text=True)
    if done.returncode > 1:
        raise RuntimeError(done.stderr)
    return f"file://{page}"


def leak(path):
    subprocess.run([sys.executable, os.path.join(HERE, "..", "..", "examples", "trace.py"), path, "--leak"], check=True)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.makedirs(FOLDER, exist_ok=True)
        cls.pages = {"leak": make("leak", leak), "blocks": make("blocks", traces.blocks),
                     "thousand_pages": make("thousand_pages", traces.thousand_pages),
                     "hostile": make("hostile", traces.hostile)}
        cls.browser = Browser(find())

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        self.browser.errors.clear()

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])

    def open(self, name, fragment="", **how):
        self.browser.open(self.pages[name] + fragment, **how)
        self.assertEqual(self.browser.requests, [self.pages[name].split("#")[0]] if how.get("script", True) else
                         self.browser.requests[:1])

    def text(self, element):
        return self.browser.run(f"document.getElementById('{element}').textContent")

    def rectangle(self, element):
        return self.browser.run(f"(r => [r.x + scrollX, r.y + scrollY, r.width, r.height])"
                                f"(document.getElementById('{element}').getBoundingClientRect())")

    def shoot(self, name, element=None):
        """The picture of an element, or of the whole page."""
        path = os.path.join(FOLDER, f"{name}.png")
        self.browser.screenshot(path, self.rectangle(element) if element else None)
        return Picture(path)

    def colour(self, name):
        value = self.browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
        return tuple(bytes.fromhex(value[1:]))

    def check_pictures(self, name, dark):
        """No canvas is blank, and the ground is light or dark."""
        self.open(name, dark=dark)
        picture = self.shoot(f"{name}_{'dark' if dark else 'light'}")
        for canvas in CANVASES:
            colours = picture.colours(*self.rectangle(canvas))
            total, most = sum(colours.values()), max(colours.values())
            self.assertGreater(total, 2000, f"{name} {canvas}")
            self.assertGreater(len(colours), 5, f"{name} {canvas}")
            self.assertLess(most / total, 0.97, f"{name} {canvas}")
        brightness = sum(picture.lines[0][:3])
        self.assertTrue(brightness < 150 if dark else brightness > 600)
        return picture

    def test_light_and_dark(self):
        for name in ("leak", "blocks"):
            for dark in (False, True):
                self.check_pictures(name, dark)

    def test_verdicts_are_said(self):
        self.open("leak")
        self.assertIn("forward 0 of 4: layer 0, tensor t1, 11 tokens (padded 12) in blocks of 11", self.text("selected"))
        self.assertIn("padding: the forward's padding rows are attended with what they hold", self.text("headline"))
        self.assertIn("verdict: padding: ", self.text("explained"))
        self.assertIn("1 known to read other keys than it should, 0 not known", self.text("keys-says"))
        self.assertIn("66 of 72 cells are wrong", self.text("heat-says"))
        self.open("blocks")
        self.assertIn("forward 9 of 12", self.text("selected"))
        self.assertIn("window: the window starts at the first token of a page", self.text("headline"))
        self.assertIn("2 known to read other keys than they should, 0 not known", self.text("keys-says"))
        self.browser.run("document.getElementById('keys-table').open = true")
        self.browser.run("new Promise(done => setTimeout(done, 50))")
        self.assertIn("0-4, 31-46", self.text("keys-table"))
        self.assertIn("tokens 28-30 (of forward 5 rank 1)", self.text("keys-table"))

    def test_every_kind_of_page_has_its_colour(self):
        self.open("blocks")
        seen = self.shoot("pages", "pages").colours()
        for kind in KINDS:
            self.assertGreater(seen.get(self.colour(kind), 0), 40, kind)
        wrong = self.shoot("keys", "keys").colours()
        self.assertGreater(wrong.get(self.colour("extra"), 0), 100)

    def test_kinds_differ_for_colour_blind_eyes(self):
        self.open("blocks")
        swatches = self.browser.run("Array.from(document.querySelectorAll('#pages-legend canvas'), canvas => "
                                    "(r => [r.x + scrollX, r.y + scrollY, r.width, r.height])(canvas.getBoundingClientRect()))")
        for sight in ("none", "protanopia", "deuteranopia", "tritanopia"):
            self.browser.call("Emulation.setEmulatedVisionDeficiency", type=sight)
            picture, (left, top, _, _) = self.shoot(f"sight_{sight}", "pages-legend"), self.rectangle("pages-legend")
            colours = [picture.colours(x - left, y - top, width, height).most_common(1)[0][0]
                       for x, y, width, height in swatches[:len(KINDS)]]
            for i, one in enumerate(colours):
                for other in colours[:i]:
                    self.assertGreater(sum(abs(a - b) for a, b in zip(one, other)), 40, f"{sight}: {KINDS[i]} {colours}")
        self.browser.call("Emulation.setEmulatedVisionDeficiency", type="none")

    def test_a_thousand_pages(self):
        for dark in (False, True):
            self.check_pictures("thousand_pages", dark)
        size = os.path.getsize(os.path.join(FOLDER, "thousand_pages.html"))
        self.assertLess(size, 2_000_000)
        pages = self.text("pages-says")
        counts = {words[1]: int(words[0]) for words in (part.split() for part in pages.split(" pages ")[0].split(", "))}
        self.assertGreaterEqual(sum(counts.values()), 1000)
        self.assertEqual(counts["pinned"], 2800 // 4)
        self.assertIn("padding", self.text("headline"))
        start = time.monotonic()
        for _ in range(10):
            self.browser.press("ArrowLeft")
        self.assertIn("forward 69 of 80", self.text("selected"))
        self.assertLess((time.monotonic() - start) / 10, 0.5)

    def test_keyboard(self):
        self.open("blocks", "#forward=2")
        self.assertIn("forward 2 of 12", self.text("selected"))
        self.browser.press("ArrowRight")
        self.assertIn("forward 3 of 12", self.text("selected"))
        self.browser.press("ArrowLeft")
        self.browser.press("ArrowLeft")
        self.assertIn("forward 1 of 12", self.text("selected"))
        self.browser.press("w")
        self.assertIn("forward 9 of 12", self.text("selected"))
        self.assertEqual(self.browser.run("location.hash"), "#forward=9&block=1")
        reached = []
        for _ in range(30):
            self.browser.press("Tab")
            reached.append(self.browser.run("document.activeElement.id"))
        for element in ("previous", "slider", "next", "next-wrong", "block", *CANVASES):
            self.assertIn(element, reached)
        self.browser.run("document.getElementById('slider').focus()")
        self.browser.press("ArrowLeft")
        self.assertIn("forward 8 of 12", self.text("selected"))

    def test_keyboard_inside_pictures(self):
        self.open("blocks")
        before = self.shoot("unfocused", "pages").colours()
        self.browser.run("document.getElementById('pages').focus()")
        self.assertIn("page 0: pinned tokens 0-3; read by block 1", self.text("pages-says"))
        self.browser.press("ArrowRight")
        self.assertIn("page 6: pinned token 4, stale tokens 25-27", self.text("pages-says"))
        after = self.shoot("focused", "pages").colours()
        focus = self.colour("focus")
        self.assertGreater(after.get(focus, 0), before.get(focus, 0) + 50)
        self.browser.press("ArrowDown")
        self.assertIn("copies of", self.text("pages-says"))
        self.browser.run("document.getElementById('keys').focus()")
        self.browser.press("ArrowDown")
        self.assertIn("block 1 (rows 3-5): should read 21 keys, tokens 0-4, 31-46; reads tokens 28-30", self.text("keys-says"))
        self.browser.press("Enter")
        self.assertEqual(self.browser.run("document.getElementById('block').value"), "1")
        self.browser.run("document.getElementById('timeline').focus()")
        self.browser.press("End")
        self.browser.press("ArrowLeft")
        self.browser.press("ArrowLeft")
        self.browser.press("Enter")
        self.assertIn("forward 11 of 12", self.text("selected"))

    def test_accessible_names(self):
        self.open("blocks")
        self.browser.call("Accessibility.enable")
        nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        self.browser.call("Accessibility.disable")
        named = {"button", "slider", "combobox", "image", "radio", "navigation", "radiogroup", "DisclosureTriangle"}
        found = set()
        for node in nodes:
            role = node.get("role", {}).get("value")
            if node.get("ignored") or role not in named:
                continue
            found.add(role)
            self.assertTrue(node.get("name", {}).get("value", "").strip(), role)
        self.assertLessEqual({"button", "slider", "combobox", "image", "radio", "navigation"}, found)

    def test_names_of_strangers(self):
        self.open("hostile")
        self.assertIn("ckv report: ", self.browser.run("document.title"))
        self.assertEqual(self.browser.run("document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.run("document.querySelectorAll('script').length"), 2)
        self.assertIn("</script><script>document.title='owned'", self.text("selected"))

    def test_without_a_script(self):
        self.open("blocks", script=False)
        path = os.path.join(FOLDER, "noscript.png")
        self.browser.screenshot(path)
        self.assertGreater(len(Picture(path).colours()), 20)
        document = self.browser.call("DOM.getDocument", depth=-1)["root"]
        rows = self.browser.call("DOM.querySelectorAll", nodeId=document["nodeId"], selector="#all[open] tbody tr")["nodeIds"]
        self.assertEqual(len(rows), 12)

    def test_narrow_and_printed(self):
        self.open("blocks", width=400)
        self.shoot("narrow")
        self.assertLessEqual(self.browser.run("document.scrollingElement.scrollWidth"), 400)
        self.open("blocks", dark=True)
        pdf = self.browser.pdf()
        self.assertTrue(pdf.startswith(b"%PDF-"))
        self.assertGreater(len(pdf), 20000)
        self.assertFalse(self.browser.run("document.documentElement.classList.contains('paper')"))


if __name__ == "__main__":
    if find() is None:
        sys.exit("no Chromium in PATH")
    unittest.main(verbosity=2)
