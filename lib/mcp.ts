export { exposeToolsOverMcp, type McpToolsOptions } from './mcp-endpoint.ts';
export type { AllowedTools } from './mcp-replies.ts';
export type { McpTool } from './mcp-tools.ts';
