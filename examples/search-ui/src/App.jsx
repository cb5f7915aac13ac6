import {
  ErrorBoundary,
  Facet,
  Paging,
  PagingInfo,
  Results,
  SearchBox,
  SearchProvider,
  WithSearch,
} from "@elastic/react-search-ui";
import { Layout } from "@elastic/react-search-ui-views";
import { config } from "./config.js";

export function App() {
  return (
    <SearchProvider config={config}>
      <WithSearch mapContextToProps={({ wasSearched }) => ({ wasSearched })}>
        {({ wasSearched }) => (
          <ErrorBoundary>
            <Layout
              header={
                <>
                  <h1>Articles</h1>
                  <SearchBox inputProps={{ placeholder: "Search articles", "aria-label": "Search articles" }} />
                </>
              }
              sideContent={
                <>
                  <Facet field="topic.keyword" label="Topic" filterType="any" />
                  <Facet field="year" label="Year" filterType="any" />
                </>
              }
              bodyHeader={wasSearched && <PagingInfo />}
              bodyContent={<Results titleField="title" />}
              bodyFooter={<Paging />}
            />
          </ErrorBoundary>
        )}
      </WithSearch>
    </SearchProvider>
  );
}
