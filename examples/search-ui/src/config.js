import { ApiProxyConnector } from "@elastic/search-ui-elasticsearch-connector/api-proxy";

export const config = {
  apiConnector: new ApiProxyConnector({ basePath: "/api" }),
  alwaysSearchOnInitialLoad: true,
  initialState: { resultsPerPage: 5 },
  searchQuery: {
    search_fields: { title: { weight: 3 }, text: {} },
    result_fields: {
      title: { raw: {} },
      text: { snippet: { size: 200, fallback: true } },
      topic: { raw: {} },
      year: { raw: {} },
    },
    disjunctiveFacets: ["topic.keyword"],
    facets: {
      "topic.keyword": { type: "value" },
      year: {
        type: "range",
        ranges: [
          { to: 1999, name: "Before 2000" },
          { from: 2000, to: 2009, name: "2000 to 2009" },
          { from: 2010, name: "2010 and later" },
        ],
      },
    },
  },
};
