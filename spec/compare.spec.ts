import { expect } from 'chai';
import { readFileSync } from 'node:fs';
import { arrangements } from './compare/arrangements.ts';
import { drawChart, seriesNames } from './compare/chart.ts';
import { parseOptions } from './compare/options.ts';
import { haproxyConfiguration, nginxConfiguration } from './compare/proxies.ts';
import { failures, toJson, toTable, type Report } from './compare/report.ts';
import type { AfterKill } from './compare/sessions.ts';
import { distribution, measured, median, medianRatio, percentile, ratios } from './compare/statistics.ts';

const proxyOptions = { port: 8000, processPorts: [8001, 8002], folder: '/folder' };

/** Fails for a text that is no well-formed XML, as far as an SVG file without declarations, comments and CDATA goes. */
function expectWellFormed(svg: string): void {
  const open: string[] = [];
  const token = /<(\/?)([a-zA-Z][\w:-]*)((?:\s+[\w:-]+="[^"<]*")*)\s*(\/?)>|([^<>]+)/gy;
  let end = 0;
  for (let match = token.exec(svg); match !== null; match = token.exec(svg)) {
    const [, isEnd, name = '', attributes = '', isEmpty, text = ''] = match;
    end = token.lastIndex;
    expect(attributes + text).not.to.match(/&(?!(amp|lt|gt|quot|apos|#\d+|#x[\da-f]+);)/i);
    if (isEnd) expect(open.pop()).to.equal(name);
    else if (name !== '' && !isEmpty) open.push(name);
    else if (open.length === 0) expect(text.trim()).to.equal('');
  }
  expect(svg.slice(end, end + 80)).to.equal('');
  expect(open).to.deep.equal([]);
}

describe('npm run compare', () => {
  describe('the configurations of proxies', () => {
    it("has nginx choose by the hash of the session's cookie, or of its own", () => {
      const bySession = nginxConfiguration('session-cookie', proxyOptions);
      expect(bySession).to.match(/upstream processes \{\s+hash \$cookie_sid consistent;\s+server 127\.0\.0\.1:8001;/);
      expect(bySession).to.contain('server 127.0.0.1:8002;').and.to.contain('listen 127.0.0.1:8000;');
      expect(bySession).not.to.contain('userid');
      const byOwn = nginxConfiguration('own-cookie', proxyOptions);
      expect(byOwn).to.match(/userid on;\s+userid_name route;/);
      expect(byOwn).to.contain('hash $uid_got$uid_set consistent;');
    });

    it('has HAProxy learn from a reply which process set the cookie', () => {
      const configuration = haproxyConfiguration(proxyOptions);
      expect(configuration).to.match(/stick match req\.cook\(sid\)\n\s+stick store-response res\.cook\(sid\)/);
      expect(configuration).to.match(/bind 127\.0\.0\.1:8000\n/);
      expect(configuration).to.match(
        /server process1 127\.0\.0\.1:8001 check\n\s+server process2 127\.0\.0\.1:8002 check/,
      );
    });

    it('writes to one folder, and needs no rights of root', () => {
      const configuration = nginxConfiguration('session-cookie', proxyOptions);
      const paths = [...configuration.matchAll(/(?:_path|pid|error_log) (\S+);/g)].map(([, path]) => path);
      expect(paths).to.have.length(7);
      for (const path of paths) expect(path).to.match(/^\/folder\//);
      expect(configuration).not.to.match(/^user /m);
    });
  });

  describe('the statistics', () => {
    it('take percentiles by the nearest rank', () => {
      const hundred = Array.from({ length: 100 }, (_, index) => 100 - index);
      expect([0, 0.01, 0.5, 0.99, 1].map((share) => percentile(hundred, share))).to.deep.equal([1, 1, 50, 99, 100]);
      expect(median([3, 1, 2])).to.equal(2);
      expect(median([])).to.deep.equal(NaN);
    });

    it('divide round by round, and take the median of that', () => {
      // The machine was slow in the second round, for both.
      expect(medianRatio([2, 20, 2], [1, 10, 2])).to.equal(2);
      const reference = [measured([1, 1, 1, 2], 1), measured([2, 2, 2, 4], 2)];
      const other = [measured([3, 3, 3, 3], 2), measured([6, 6, 6, 6], 4)];
      expect(ratios(other, reference)).to.deep.equal({ callsPerSecond: 0.5, p50: 3, p99: 1.5 });
      expect(ratios(reference, reference)).to.deep.equal({ callsPerSecond: 1, p50: 1, p99: 1 });
    });

    it('draw distributions in as many steps for any number of values, without the longest', () => {
      const thousand = Array.from({ length: 1_000 }, (_, index) => index + 1);
      expect(distribution(thousand, 4)).to.deep.equal([
        { share: 0, value: 1 },
        { share: 0.25, value: 250 },
        { share: 0.5, value: 500 },
        { share: 0.75, value: 750 },
        { share: 1, value: 995 },
      ]);
    });
  });

  describe('the report', () => {
    const [alone] = arrangements;
    const routed = arrangements.find(({ start }) => start === 'routed');
    if (alone === undefined || routed === undefined) throw new Error('an arrangement is missing');
    const costs = { callsPerSecond: 0.5, p50: 2, p99: 3 };
    const right = { right: 10, empty: 0, refused: 0, unanswered: 0 };
    const refused = { right: 0, empty: 0, refused: 4, unanswered: 0 };
    const report = (
      afterKill: AfterKill = { openedBy: 4, lost: refused, others: right, refusals: { 410: 4 } },
    ): Report => ({
      workers: 4,
      processors: 2,
      strict: false,
      episodes: 200,
      seeds: 100,
      sessions: 14,
      rounds: 1,
      rows: [
        { arrangement: alone, rightEpisodes: 200, repeatedSeeds: 100 },
        { arrangement: routed, rightEpisodes: 200, repeatedSeeds: 100, afterKill, costs: { one: costs, many: costs } },
      ],
      reference: { one: measured([1], 1), many: measured([2], 1) },
      leftOut: [],
    });

    it('shows every arrangement, and says of each what it does not claim', () => {
      const table = toTable(report());
      expect(table).to.match(/^one worker +200 of 200 +100 of 100( +-){7}$/m);
      expect(table).to.match(/^this package +200 of 200 +100 of 100 +4 +4 +0 +4 +0 +0 +10 of 10$/m);
      expect(table).to.match(/^this package( +0\.50 +2\.00 +3\.00){2}$/m);
      for (const { title, note } of [alone, routed]) expect(table).to.contain(`${title}: ${note}`);
      const rows = JSON.parse(toJson(report())).rows as { name: string }[];
      expect(rows.map(({ name }) => name)).to.deep.equal(['one-worker', 'routed']);
    });

    it('fails for sessions served from empty state, and for anything else that this package got wrong', () => {
      expect(failures(report())).to.deep.equal([]);
      const lost = { right: 0, empty: 1, refused: 3, unanswered: 0 };
      expect(failures(report({ openedBy: 4, lost, others: right, refusals: {} }))).to.deep.equal([
        'this package: 1 sessions were served from empty state after a worker was killed.',
        'this package: 3 of 4 sessions of the killed worker were refused.',
      ]);
      const wrong = report();
      const rows = wrong.rows.map((row) => ({ ...row, rightEpisodes: 199, repeatedSeeds: 99 }));
      expect(failures({ ...wrong, rows })).to.deep.equal([
        'this package: 199 of 200 episodes counted right.',
        'this package: 99 of 100 repeated seeds reached one state.',
      ]);
    });
  });

  it('refuses options that it cannot obey', () => {
    const names = arrangements.map(({ name }) => name);
    expect(parseOptions([], names)).to.include({ episodes: 200, strict: false, json: false, chart: false });
    expect(() => parseOptions(['--episodes', '0'], names)).to.throw('--episodes takes a whole number from 1 to 2000');
    expect(() => parseOptions(['--only', 'magic'], names)).to.throw('--only takes one of one-worker, cluster, ');
    expect(() => parseOptions(['--chart', '--strict'], names)).to.throw('--strict');
  });

  describe('the chart', () => {
    const points = (scale: number) =>
      distribution(
        [1, 2, 3].map((value) => value * scale),
        10,
      );
    const data = {
      latencies: Object.fromEntries(seriesNames.slice(0, 4).map((series, index) => [series, points(index + 1)])),
      rewards: Object.fromEntries(seriesNames.slice(4).map((series) => [series, [{ workers: 1, share: 1 }]])),
    };

    it('is drawn alike from the same data, and of one size from any', async () => {
      const svg = await drawChart(data);
      expectWellFormed(svg);
      expect(await drawChart(data)).to.equal(svg);
      const size = (text: string) => /<svg [^>]*(width="\d+" height="\d+")/.exec(text)?.[1];
      expect(size(await drawChart({ ...data, rewards: {} })))
        .to.equal(size(svg))
        .and.to.be.a('string');
    });

    it('is committed in a well-formed file that names all series and axes, for light and dark surroundings', () => {
      const svg = readFileSync(new URL('../examples/compare.svg', import.meta.url), 'utf8');
      expectWellFormed(svg);
      const titles = [
        'time of a call (ms, logarithmic)',
        'calls that took no longer (%)',
        'workers',
        'episodes right (%)',
      ];
      for (const text of [...seriesNames, ...titles]) expect(svg).to.contain(`>${text}</text>`);
      expect(svg).to.contain('prefers-color-scheme:dark').and.to.contain('currentColor');
      expect(svg).not.to.match(/<script|href=|url\(/);
    });
  });
});
