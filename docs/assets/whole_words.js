// Keys, options and values are not broken at a hyphen or bracket: `--save-best`, `[C,H,W]`. Long ones may be.
document$.subscribe(() => {
  for (const code of document.querySelectorAll("article code")) {
    const text = code.textContent.trim()
    if (!code.closest("pre") && text.length <= 28 && !/\s/.test(text)) code.style.whiteSpace = "nowrap"
  }
})
