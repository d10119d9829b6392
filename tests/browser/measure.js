// What a reader would see as broken, as a list of sentences. An expression, so that the browser returns its value.
(() => {
  const faults = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} px wide in ${root.clientWidth} px`);

  const shown = (element) => element.getClientRects().length > 0;
  const name = (text) => `${JSON.stringify(text.textContent)} of ${text.ownerSVGElement.getAttribute("aria-label")}`;
  // A hinted glyph may reach one pixel over its box; two labels that touch are still readable.
  const slack = 1;
  let texts = 0;
  for (const svg of document.querySelectorAll("figure svg")) {
    if (!shown(svg)) continue;
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    for (const [n, [text, box]] of boxes.entries()) {
      texts += 1;
      if (box.left < frame.left - slack || box.right > frame.right + slack || box.top < frame.top - slack
        || box.bottom > frame.bottom + slack) faults.push(`cut: ${name(text)}`);
      // The height of a box has room for accents and descenders, which figures do not have.
      const height = box.height * 0.22;
      for (const [other, place] of boxes.slice(n + 1)) {
        if (box.left + slack < place.right && place.left + slack < box.right
          && box.top + height < place.bottom - height && place.top + height < box.bottom - height) {
          faults.push(`overlap: ${name(text)} and ${JSON.stringify(other.textContent)}`);
        }
      }
      const size = parseFloat(getComputedStyle(text).fontSize) * frame.width / svg.viewBox.baseVal.width;
      if (size < 9) faults.push(`${size.toFixed(1)} px: ${name(text)}`);
    }
  }

  // Contrast of text with the page, by WCAG 2.2: 4.5 for text, 3 for lines and markers.
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).map((part) => channel(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const [light, dark] = [luminance(colour), paper].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const weak = new Set();
  const judge = (selector, property, least) => {
    for (const element of document.querySelectorAll(selector)) {
      const style = getComputedStyle(element);
      if (shown(element) && contrast(style[property]) < least) {
        weak.add(`contrast ${contrast(style[property]).toFixed(1)} of ${selector} ${element.getAttribute("class")}`);
      }
    }
  };
  judge("h1, h2, h3, p, li, th, td, dt, dd, span, small, b, strong, figcaption", "color", 4.5);
  judge("svg text", "fill", 4.5);
  judge(".l, .m, .w, .b", "color", 3);
  faults.push(...weak);
  return { faults, texts };
})()
