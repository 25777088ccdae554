import { expect } from 'chai';
import { parseOptions } from './nodes/matrix.ts';

describe('the options of test:nodes', () => {
  it('ask for the whole matrix by default', () => {
    const { cells, files, asJson } = parseOptions([]);
    expect(cells).to.have.length(8);
    expect(new Set(cells.map(({ node, express }) => `${node} ${express}`)).size).to.equal(8);
    expect([files, asJson]).to.deep.equal([[], false]);
  });

  it('choose lines of Node and of Express, and files', () => {
    expect(parseOptions(['--node', '22', '--express', '4', '--json', 'spec/cli.spec.ts'])).to.deep.equal({
      cells: [{ node: '22', express: '4' }],
      asJson: true,
      files: ['spec/cli.spec.ts'],
    });
    const { cells } = parseOptions(['--node=22', '--node=26', '--express=5']);
    expect(cells.map(({ node }) => node)).to.deep.equal(['22', '26']);
  });

  it('are refused for lines that are not supported, and for options that there are not', () => {
    for (const args of [
      ['--node', '18'],
      ['--node', '23'],
      ['--express', '3'],
      ['--nodes', '22'],
    ]) {
      expect(() => parseOptions(args), args.join(' ')).to.throw(TypeError);
    }
  });
});
