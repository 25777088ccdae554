import { parse, View, type Axis, type Data, type Legend, type Mark, type Scale, type Spec } from 'vega';

export interface ChartData {
  /** For each series, the share of calls that take no longer than a number of milliseconds. */
  readonly latencies: Readonly<Record<string, readonly { readonly share: number; readonly value: number }[]>>;
  /** For each series, the share of episodes that counted right, by the number of workers. */
  readonly rewards: Readonly<Record<string, readonly { readonly workers: number; readonly share: number }[]>>;
}

// Told apart by dashes as well as by colour, and of a brightness that is seen on white and on black.
const strokes: Readonly<Record<string, { readonly color: string; readonly dash: readonly number[] }>> = {
  'one worker': { color: '#8b949e', dash: [] },
  'forwarded by this package': { color: '#2f81f7', dash: [] },
  nginx: { color: '#2da44e', dash: [6, 3] },
  HAProxy: { color: '#e0692b', dash: [2, 2] },
  'with this package': { color: '#2f81f7', dash: [] },
  'plain cluster': { color: '#d6409f', dash: [6, 3] },
};

/** The series of a chart, by panel: the spec checks that the committed chart has them. */
export const seriesNames = Object.keys(strokes);

const height = 260;
const widths = { latencies: 380, rewards: 240 };
const gap = 90;
/** In the colour of the text around, which the style of the file sets for light and dark surroundings. */
const ink = 'currentColor';

/** Draws both panels, as the text of an SVG file. Without a canvas to ask, Vega estimates widths: alike on every machine. */
export async function drawChart(data: ChartData): Promise<string> {
  const view = new View(parse(chart(data)), { renderer: 'none' });
  try {
    return styled(await view.toSVG());
  } finally {
    view.finalize();
  }
}

/** Light surroundings and dark ones have a paper of their own, so that the chart can be read whatever page shows it. */
function styled(svg: string): string {
  const style =
    'svg{color:#1f2328;background:#ffffff}@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}';
  return `${svg.replace(/^<svg [^>]*>/, (opening) => `${opening}<style>${style}</style>`)}\n`;
}

function chart({ latencies, rewards }: ChartData): Spec {
  return {
    $schema: 'https://vega.github.io/schema/vega/v6.json',
    description: 'How long a tool call takes, and how many episodes count right by the number of workers',
    autosize: 'none',
    padding: 0,
    width: 60 + widths.latencies + gap + widths.rewards + 25,
    height: height + 110,
    config: {
      axis: {
        labelColor: ink,
        titleColor: ink,
        tickColor: ink,
        domainColor: ink,
        gridColor: ink,
        gridOpacity: 0.15,
        labelFontSize: 12,
        titleFontSize: 12,
        titleFontWeight: 'normal',
      },
      legend: { labelColor: ink, labelFontSize: 12, symbolSize: 400, symbolStrokeWidth: 2.5, labelLimit: 0 },
      title: { color: ink, fontSize: 14, anchor: 'start', offset: 14 },
    },
    data: [table('latencies', latencies), table('rewards', rewards)],
    marks: [
      panel({
        name: 'latencies',
        title: 'How long a tool call takes',
        left: 60,
        x: { name: 'latencies-x', type: 'log', nice: false, domain: { data: 'latencies', field: 'value' } },
        xAxis: { title: 'time of a call (ms, logarithmic)', format: '~g', tickCount: 6, labelOverlap: true },
        xField: 'value',
        yTitle: 'calls that took no longer (%)',
        series: Object.keys(latencies),
        legendLeft: 185,
        legendTop: 160,
        points: false,
      }),
      panel({
        name: 'rewards',
        title: 'Episodes that count right',
        left: 60 + widths.latencies + gap,
        x: { name: 'rewards-x', type: 'point', padding: 0.3, domain: { data: 'rewards', field: 'workers' } },
        xAxis: { title: 'workers', grid: false },
        xField: 'workers',
        yTitle: 'episodes right (%)',
        series: Object.keys(rewards),
        legendLeft: 105,
        legendTop: 90,
        points: true,
      }),
    ],
  };
}

function table(name: string, values: Readonly<Record<string, readonly { readonly share: number }[]>>): Data {
  return {
    name,
    values: Object.entries(values).flatMap(([series, points]) =>
      points.map((point) => ({ ...point, series, percent: point.share * 100 })),
    ),
  };
}

interface Panel {
  readonly name: keyof typeof widths;
  readonly title: string;
  readonly left: number;
  readonly x: Scale;
  readonly xAxis: Partial<Axis>;
  readonly xField: string;
  readonly yTitle: string;
  readonly series: readonly string[];
  readonly legendLeft: number;
  readonly legendTop: number;
  readonly points: boolean;
}

function panel({ name, title, left, x, xAxis, xField, yTitle, series, legendLeft, legendTop, points }: Panel): Mark {
  const width = widths[name];
  const [y, color, dash] = [`${name}-y`, `${name}-color`, `${name}-dash`];
  const place = { x: { scale: x.name, field: xField }, y: { scale: y, field: 'percent' } };
  const lines: Mark = {
    type: 'line',
    from: { data: `${name}-series` },
    encode: {
      enter: {
        ...place,
        stroke: { scale: color, field: 'series' },
        strokeDash: { scale: dash, field: 'series' },
        strokeWidth: { value: 2.5 },
      },
    },
  };
  const dots: Mark = {
    type: 'symbol',
    from: { data: `${name}-series` },
    encode: { enter: { ...place, fill: { scale: color, field: 'series' }, size: { value: 60 } } },
  };
  const legend: Legend = {
    stroke: color,
    strokeDash: dash,
    symbolType: 'stroke',
    orient: 'none',
    legendX: legendLeft,
    legendY: legendTop,
  };
  return {
    type: 'group',
    encode: {
      enter: { x: { value: left }, y: { value: 45 }, width: { value: width }, height: { value: height } },
    },
    title: { text: title },
    scales: [
      { ...x, range: [0, width] } as Scale,
      { name: y, type: 'linear', domain: [0, 100], range: [height, 0] },
      { name: color, type: 'ordinal', domain: [...series], range: series.map((each) => strokes[each]?.color ?? ink) },
      {
        name: dash,
        type: 'ordinal',
        domain: [...series],
        range: series.map((each) => [...(strokes[each]?.dash ?? [])]),
      },
    ],
    axes: [
      { scale: x.name, orient: 'bottom', grid: true, gridScale: y, titlePadding: 10, ...xAxis },
      { scale: y, orient: 'left', grid: true, gridScale: x.name, tickCount: 5, title: yTitle, titlePadding: 10 },
    ],
    legends: [legend],
    marks: [
      {
        type: 'group',
        from: { facet: { name: `${name}-series`, data: name, groupby: 'series' } },
        marks: points ? [lines, dots] : [lines],
      },
    ],
  };
}
