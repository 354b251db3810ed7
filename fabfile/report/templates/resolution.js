// uPlot paints as finely as the screen has pixels. On paper that is coarse, so it is told that the screen is a fine one.
Object.defineProperty(window, "devicePixelRatio", { value: Math.max(devicePixelRatio, 3) });
