// Keys, options and values are not broken at a hyphen or bracket: `--save-best`, `[C,H,W]`. Long ones can be.
document$.subscribe(() => {
  for (const code of document.querySelectorAll("article code")) {
    const text = code.textContent.trim()
    if (!code.closest("pre") && text.length <= 28 && /^(-.*|\S*)$/.test(text)) code.style.whiteSpace = "nowrap"
  }
})
